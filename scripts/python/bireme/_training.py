"""Training with the program, and its metrics."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Iterator

import numpy as np

from ._library import BiremeError
from ._model import _format_setting
from ._program import find_program

_POLL_SECONDS = 0.1
_SIGNAL_SECONDS = 5
_STOP_SECONDS = 600


def _read_scalar(text: str) -> str | None:
    """Return the text of a YAML scalar on one line; None: null."""
    text = text.strip()
    if double := re.match(r'"(?:[^"\\]|\\.)*"', text):
        return json.loads(double[0])
    if single := re.match(r"'((?:[^']|'')*)'", text):
        return single[1].replace("''", "'")
    plain = re.split(r"(?:^|\s)#", text)[0].strip()
    return None if plain in ("", "~", "null", "Null", "NULL") else plain


def _find_run_folder(recipe: Path, settings: list[str]) -> Path:
    """Return the run folder: the setting run_dir, or runs/NAME for NAME.yaml."""
    folder = None
    for line in recipe.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"([\"']?)run_dir\1\s*:(?=\s|$)(.*)", line):
            folder = _read_scalar(found[2])
    for setting in settings:
        key, _, text = setting.partition("=")
        if key == "run_dir":  # quotes begin a YAML scalar; the program takes other texts as they are
            folder = _read_scalar(text) if text[:1] in ("'", '"') or text == "null" else text
    return Path(folder) if folder is not None else Path("runs") / recipe.stem


def _read_rows(path: Path, position: int) -> tuple[list[dict[str, object]], int]:
    """Return the complete rows after a position of metrics.jsonl, and the new position."""
    if not path.exists():
        return [], position
    with path.open("rb") as file:
        file.seek(position)
        data = file.read()
    end = data.rfind(b"\n") + 1
    return [json.loads(line) for line in data[:end].splitlines()], position + end


class _NewRows:
    """The rows that a program appends to metrics.jsonl from its "start" row on.

    A run that is resumed first removes rows from the end of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin = time.time()
        self._position: int | None = None

    def read(self) -> list[dict[str, object]]:
        """Return the rows that no earlier call has returned."""
        if self._position is not None:
            rows, self._position = _read_rows(self._path, self._position)
            return rows
        rows, position = _read_rows(self._path, 0)
        starts = [
            i
            for i, row in enumerate(rows)
            if row.get("event") == "start" and row["time"] >= self._begin
        ]
        if not starts:
            return []
        self._position = position
        return rows[starts[0] :]


def _require_mpi(program: str) -> None:
    output = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    if not re.search(r"^MPI +MPI", output, re.MULTILINE):
        raise BiremeError(69, f"{program} is built without MPI, as in the wheel; ranks must be 1")
    if shutil.which("mpirun") is None:
        raise BiremeError(69, "ranks > 1 requires mpirun, which is not in PATH")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Make a run save a checkpoint and stop.

    mpirun forwards SIGUSR1 to the ranks, but not while it starts them. After SIGTERM or SIGINT it
    kills them.
    """
    for _ in range(_STOP_SECONDS // _SIGNAL_SECONDS):
        process.send_signal(signal.SIGUSR1)
        try:
            process.wait(_SIGNAL_SECONDS)
            return
        except subprocess.TimeoutExpired:
            pass
    process.kill()
    process.wait()
    raise BiremeError(71, f"the run did not stop within {_STOP_SECONDS} s and was killed")


def train(
    recipe: str | os.PathLike[str], *, ranks: int = 1, **overrides: object
) -> Iterator[dict[str, object]]:
    """Train a model, and yield each new row of the run's metrics.jsonl.

    `overrides` are settings: ``train("mine.yaml", train__max_steps=100)`` or
    ``train("mine.yaml", **{"train.max_steps": 100})``. A run that exists is resumed. With several
    ranks, `mpirun` starts the program. If the iterator is closed, the run saves a checkpoint and
    stops. docs/reference/metrics.md describes the rows. Raises BiremeError if the program fails,
    if a closed run does not stop within 10 minutes, or if there are several ranks and no MPI.
    """
    path = Path(recipe)
    settings = [_format_setting(key, value) for key, value in overrides.items()]
    metrics_path = _find_run_folder(path, settings) / "metrics.jsonl"
    program = find_program()
    launcher = ["mpirun", "-np", str(ranks)] if ranks > 1 else []
    if launcher:
        _require_mpi(program)
    new_rows = _NewRows(metrics_path)
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            [*launcher, program, "train", str(path), *settings],
            stdout=subprocess.DEVNULL,
            stderr=messages,
            start_new_session=bool(launcher),  # Ctrl-C would make mpirun kill its ranks
        )
        try:
            running = True
            while running:
                running = process.poll() is None
                rows = new_rows.read()
                yield from rows
                if running and not rows:
                    time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                _stop(process)
        if process.returncode != 0:
            messages.seek(0)
            lines = messages.read().decode(errors="replace").splitlines()
            errors = [line[7:] for line in lines if line.startswith("error: ")]
            reason = errors[-1] if errors else "\n".join(lines[-3:])
            raise BiremeError(process.returncode, reason)


def metrics(run: str | os.PathLike[str], event: str = "train") -> dict[str, np.ndarray]:
    """Return the metrics of a run folder as arrays, one element for each row of this event.

    Numbers become float64, with NaN where a row has no number. Fields of other types become arrays
    of objects. docs/reference/metrics.md describes the events and their fields.
    """
    rows, _ = _read_rows(Path(run) / "metrics.jsonl", 0)
    rows = [row for row in rows if row.get("event") == event]
    names = dict.fromkeys(name for row in rows for name in row if name != "event")
    return {name: _make_array([row.get(name) for row in rows]) for name in names}


def _make_array(values: list[object]) -> np.ndarray:
    if all(value is None or isinstance(value, (int, float)) for value in values):
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
