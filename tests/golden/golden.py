"""Golden files: output kept beside the tests, and the new output left there when it differs."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def check(name: str, text: str, update: bool) -> None:
    """Compare `text` with the golden file `name`.

    On a difference the new text is left in `name.new` and the assertion names both; `update` (the pytest flag
    `--update-golden`) rewrites the golden file instead.
    """
    golden, new = FOLDER / name, FOLDER / f"{name}.new"
    if update:
        golden.write_text(text, encoding="utf-8")
        new.unlink(missing_ok=True)
        return
    expected = golden.read_text(encoding="utf-8") if golden.exists() else None
    if text != expected:
        new.write_text(text, encoding="utf-8")
        state = "differs from" if golden.exists() else "has no"
        raise AssertionError(f"output {state} {golden}; see {new}, and rerun with --update-golden if it is right")
    new.unlink(missing_ok=True)
