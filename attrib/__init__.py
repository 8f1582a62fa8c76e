"""attrib: which matrices of an LLM decode step stream below the rate the device can reach, and what it costs.

import attrib

trace = attrib.open("trace.sqlite")
census = attrib.census(trace, model="qwen2.5-14b:q4_k_m")
census.to_pandas()
attrib.stragglers(census).plot("stragglers.png")
attrib.anatomy(trace, model="qwen2.5-14b:q4_k_m").to_json()
attrib.report(trace, model="qwen2.5-14b:q4_k_m").write("report.html")
"""

import sys
from importlib import import_module, metadata
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attrib.api import anatomy, census, compare, open, report, stragglers

    __version__: str

__all__ = ["anatomy", "census", "compare", "open", "report", "stragglers"]


class _Package(ModuleType):
    """The package, with the API's functions as attributes.

    Some functions share their name with the module that implements them. Importing such a module would bind it
    here over the function; refusing that keeps `attrib.census(...)` callable whatever was imported before.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name in __all__:
            # loaded on first use, so that `import attrib` and the command line start at once
            return getattr(import_module("attrib.api"), name)
        if name == "__version__":
            try:
                return metadata.version("attrib")
            except metadata.PackageNotFoundError:  # a source tree on the path
                return "(from source)"
        raise AttributeError(f"module 'attrib' has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        return sorted(__all__)


sys.modules[__name__].__class__ = _Package
