"""Every error the toolkit raises on purpose. A message is one sentence: what is wrong, where, and what to do."""


class AttribError(Exception):
    """Base of all expected failures; the command line prints it and exits with code 2."""


class SchemaError(AttribError):
    """The file is not a readable nsys export, or lacks a table or column the analysis needs."""


class JoinError(AttribError):
    """Launches cannot be matched to bytes or to a manifest: shapes, names or grids contradict each other."""


class NoDataError(AttribError):
    """The file is readable but holds nothing the analysis could use."""


class RefusedError(AttribError):
    """The request is understood and would give a misleading answer."""
