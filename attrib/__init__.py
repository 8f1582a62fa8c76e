"""attrib: which matrices of an LLM decode step stream below the rate the device can reach, and what it costs."""
