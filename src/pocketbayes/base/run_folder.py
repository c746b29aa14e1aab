"""The names of the files in a run folder, and its lock."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pocketbayes.base import atomic
from pocketbayes.base.errors import UserError

MODEL_FILE = "model.pocket"
"""The trained network."""
METRICS_FILE = "metrics.jsonl"
"""One line per epoch."""
CHECKPOINT_FILE = "checkpoint.safetensors"
"""The state of the run; older checkpoints, if kept, are checkpoint-1.safetensors and so on."""
RECIPE_FILE = "recipe.yaml"
"""The recipe of the run."""
EVALUATION_FILE = "evaluation.json"
"""The measurements of the trained network."""
TUNING_FILE = "tuning.json"
"""The choices of `fit(tune=True)`."""
LOCK_FILE = ".lock"
"""The lock of the process that trains in the folder."""


_HELD: dict[Path, tuple[int, int]] = {}
"""Process and thread that hold each lock: the system's locks do not distinguish threads of one process."""
_HELD_GUARD = threading.Lock()


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Lock a folder for a run; the same thread may lock it repeatedly. An empty folder is removed afterwards.

    The operating system releases the lock when the process ends, even if it is killed. On a file system without locks,
    the text in the lock file decides.
    """
    with atomic.writing(folder):
        path, holder = folder.resolve() / LOCK_FILE, (os.getpid(), threading.get_ident())
        created = [each for each in (folder, *folder.parents) if not each.exists()]
    with _HELD_GUARD:
        held = _HELD.get(path)
        nested = held == holder
        if held is not None and held[0] == holder[0] and not nested:
            raise _busy(folder, {"pid": holder[0], "host": platform.node()})
        file = None if nested else _take(path, folder)
        _HELD[path] = holder
    try:
        yield
    finally:
        if file is not None:
            with _HELD_GUARD:
                del _HELD[path]
                with contextlib.suppress(OSError):
                    path.unlink()  # unlink while locked, or another run's new file could be removed
                os.close(file)
            with contextlib.suppress(OSError):
                for each in created:
                    each.rmdir()


def _take(path: Path, folder: Path) -> int:
    """Return the open lock file."""
    with atomic.writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            # Never follow a link: the file behind it would be overwritten.
            file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            try:
                _lock(file, folder)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file), path.stat()):  # otherwise its holder has removed it meanwhile
                        text = json.dumps({"pid": os.getpid(), "host": platform.node()}).encode()
                        os.truncate(file, 0)
                        os.pwrite(file, text, 0)
                        return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)


def _lock(file: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise _busy(folder, _holder(file)) from None
    except OSError:  # a file system without locks
        holder = _holder(file)
        if holder and (holder.get("host") != platform.node() or _lives(holder.get("pid"))):
            raise _busy(folder, holder) from None


def _holder(file: int) -> dict[str, Any]:
    try:
        content = json.loads(os.pread(file, 1000, 0))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _lives(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return True  # it belongs to another user
    except (OSError, TypeError, ValueError, OverflowError):
        return False
    return True


def _busy(folder: Path, holder: dict[str, Any]) -> UserError:
    who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
    way_out = f"wait for it or choose another folder; if that process is gone, remove {folder / LOCK_FILE}"
    return UserError(f"another run is writing to {folder} ({who}): {way_out}")
