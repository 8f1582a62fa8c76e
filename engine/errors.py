"""Every error the engine raises on purpose. A message says what is wrong, where, and what to do."""

from attrib.errors import AttribError


class EngineError(AttribError):
    """Base of the engine's expected failures; the command line prints it and exits with code 2."""


class CudaError(EngineError):
    """A CUDA call failed, or there is no driver or GPU to call; `status` is its code, 0 for none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class DeviceMemoryError(CudaError):
    """The device has less free memory than asked for; both numbers are in the message, in bytes."""


class BuildError(EngineError):
    """A kernel source did not compile; the message carries the compiler's log."""


class ModelError(EngineError):
    """A model or GGUF file is damaged, or of an architecture or tensor type that is not supported."""


class PlanError(EngineError):
    """A plan would skip or repeat work, or no dispatch rule fits a matrix."""


class GateFailedError(Exception):
    """A comparison gate found a difference; the command line prints it and exits with code 1."""
