"""What the name of a build means: a table in engine/builds, or the engine of a git revision in a temporary worktree.

reference            the build of this name in the engine that is installed
git:REV              build `reference` of the revision's own engine and cuda_src
git:REV:NAME         build NAME of that revision
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from attrib import capture
from attrib.errors import RefusedError
from attrib.record import Target, engine_bench

GIT = "git:"
DEFAULT = "reference"
LIMIT_S = 120.0
# the engine tells a build's content hash without a GPU; a process of its own, because attrib never imports the engine.
# Revisions from before the hash covered the planning code have no build_hash.
_HASH = """
import sys
from attrib.errors import AttribError
try:
    from engine import dispatch, module
    build = dispatch.load(sys.argv[1])
    known = getattr(module, "build_hash", module.source_hash)
    print(build.info(known(build.sources())).hash)
except AttribError as error:
    sys.exit(f"engine: {error}")
"""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the build as the user named it, the engine's name for it, its content hash.

    `root` is the worktree its engine runs from, None for the installed engine.
    """

    given: str
    build: str
    hash: str
    root: Path | None = None

    def command(self, target: Target, *options: str) -> list[str]:
        """The command line of `engine bench` for this side."""
        return _from(self.root, engine_bench(target, self.build, *options))

    def script(self, text: str, *arguments: str) -> list[str]:
        """The command line of a Python program that imports this side's engine."""
        return _from(self.root, [sys.executable, "-P", "-c", text, *arguments])


@contextmanager
def opened(given: str) -> Iterator[Side]:
    """The side a build's name stands for; a worktree is removed when the block ends.

    Raises RefusedError for a revision git does not know, CaptureError with the engine's sentence for an unknown build.
    """
    if not given.startswith(GIT):
        yield _side(given, given, None)
        return
    revision, _, name = given.removeprefix(GIT).partition(":")
    with _worktree(revision) as root:
        if not (root / "engine").is_dir():
            raise RefusedError(f"revision {revision} has no engine folder; name one that has")
        build = name or DEFAULT
        yield _side(given, build, root)


def _side(given: str, build: str, root: Path | None) -> Side:
    side = Side(given, build, "", root)
    finished = capture.run_program(side.script(_HASH, build), LIMIT_S)
    if finished.status:
        own = capture.engine_sentence(finished.err)
        raise capture.CaptureError(own or f"the engine cannot tell the hash of build {build}: {finished.last_line()}")
    return replace(side, hash=finished.out.strip())


def _from(root: Path | None, command: list[str]) -> list[str]:
    """The command with the packages of a root before the installed ones."""
    if root is None:
        return command
    # the tree comes first; packages that the caller finds through PYTHONPATH stay findable
    places = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return ["env", f"PYTHONPATH={os.pathsep.join(places)}", *command]


@contextmanager
def _worktree(revision: str) -> Iterator[Path]:
    """A checkout of a revision of the repository around the working folder."""
    folder = Path(tempfile.mkdtemp(prefix="attrib-build-"))
    root = folder / "tree"
    try:
        _git("worktree", "add", "--detach", str(root), "--", revision)
        yield root
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        capture.run_program(["git", "worktree", "prune"], LIMIT_S)


def _git(*arguments: str) -> None:
    finished = capture.run_program(["git", *arguments], LIMIT_S)
    if finished.status:
        raise RefusedError(
            f"git cannot check out {arguments[-1]!r} here: {finished.last_line()}; run inside the engine's repository "
            "and name a commit, branch or tag"
        )
