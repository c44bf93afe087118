"""Recommendations as they were made, kept so that any of them can be shown again with its numbers.

``HOME/decisions.jsonl`` holds the newest ones: the question, the version of the cost model, the
site's settings, and of each arm what no bundle knows (its wait and its chance to come up). Asked
again from those, the same version gives the same numbers; a record tells where it does not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import omnipilot
from omnipilot.advisor.answer_data import plain
from omnipilot.advisor.question import Question
from omnipilot.domain.errors import BadInputError, OmniPilotError, StateError, UsageError
from omnipilot.domain.frozen import dataclass
from omnipilot.domain.request import ServingRequest, Slo
from omnipilot.settings import FILE_NAME, Settings

if TYPE_CHECKING:
    from omnipilot.advisor.advisor import Advisor
    from omnipilot.advisor.question import Advice

__all__ = ["DECISIONS_NAME", "Replay", "remember", "replay"]

DECISIONS_NAME: Final = "decisions.jsonl"
_ID_CHARS: Final = 12
_LOCK_TIMEOUT_S: Final = 1.0
# Kernels are computed in single precision, and a sum rounds by how many arms were asked together.
_SAME: Final = 1e-4
# Facts of the site's folder that numbers depend on and that no record holds.
_FACTS: Final = ("gpus", "models")


@dataclass(frozen=True, slots=True)
class Replay:
    """A recommendation asked again.

    ``advisor`` and ``question`` ask it; ``changed`` are sentences on what is not as it was.
    """

    advisor: Advisor
    question: Question
    at_s: float
    model_version: str
    recorded: dict[str, Any]
    changed: tuple[str, ...]

    def differences(self, advice: Advice) -> list[str]:
        """Arms whose place or numbers are not those on record, to four digits."""
        now = _answer(advice)
        then = self.recorded
        if [a["arm"] for a in now["ranked"]] != [a["arm"] for a in then["ranked"]]:
            return ["the arms or their order differ from those on record"]
        return [
            f"{a['arm']}: {name} {b[name]:.7g} on record, {a[name]:.7g} now"
            for a, b in zip(now["ranked"], then["ranked"], strict=True)
            for name in ("total_usd", "tokens_per_s")
            if not math.isclose(a[name], b[name], rel_tol=_SAME)
        ]


def remember(advisor: Advisor, question: Question, advice: Advice) -> str:
    """Keep a recommendation; advice never fails for it.

    Returns:
        Its ID, "" where the site has no folder, keeps none, or cannot be written.
    """
    most = int(advisor.settings.decisions_kept)
    if most < 1 or not advisor.home.is_dir():
        return ""
    record = {
        "at_s": question.now_s,
        "code": omnipilot.__version__,
        "model_version": advice.recommendation.model_version,
        "question": _question_data(question, advice),
        "settings": _settings_text(advisor.home),
        "facts": _facts_digest(advisor.home),
        "given": _given(advice),
        "answer": _answer(advice),
    }
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
    name = hashlib.sha256(text.encode()).hexdigest()[:_ID_CHARS]
    line = f'{{"id":"{name}",{text[1:]}\n'.encode()
    with contextlib.suppress(OSError, OmniPilotError):
        _append(advisor.home / DECISIONS_NAME, line, most)
        return name
    return ""


def _append(path: Path, line: bytes, most: int) -> None:
    """Add one line; from twice as many as are kept on the oldest half goes."""
    from omnipilot.store.files import replace_file, write_all  # noqa: PLC0415 - same
    from omnipilot.store.lock import exclusive  # noqa: PLC0415 - quick where nothing is kept

    with exclusive(path.with_name(f"{DECISIONS_NAME}.lock"), _LOCK_TIMEOUT_S):
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size_bytes = os.fstat(fd).st_size
            # A line that was cut short must not swallow this one.
            whole = not size_bytes or os.pread(fd, 1, size_bytes - 1) == b"\n"
            write_all(fd, line if whole else b"\n" + line)
            size_bytes = os.fstat(fd).st_size
        finally:
            os.close(fd)
        if size_bytes < 2 * most * len(line):
            return
        lines = path.read_bytes().splitlines(keepends=True)
        if len(lines) >= 2 * most:
            replace_file(path, b"".join(lines[-most:]))


def replay(advisor: Advisor, name: str) -> Replay:
    """Find a recommendation and make ready to ask it again.

    Args:
        advisor: the site.
        name: its ID, or the first characters of it.

    Raises:
        UsageError: none or several of that name.
        StateError: the record is damaged, or its cost model is gone.
    """
    path = advisor.home / DECISIONS_NAME
    head = b'{"id":"' + name.encode()
    try:
        with path.open("rb") as stream:
            found = [line for line in stream if line.startswith(head)]
    except FileNotFoundError:
        found = []
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}") from error
    if len(found) != 1 or not name:
        raise UsageError(
            f"{'several recommendations begin' if found else 'no recommendation on record begins'} "
            f"with '{name}': {path} keeps the newest {int(advisor.settings.decisions_kept):,}"
        )
    record = _verified(found[0], path)
    try:
        version = str(record["model_version"])
        changed = []
        if record["facts"] != _facts_digest(advisor.home):
            changed.append("the site's GPU kinds or models have changed since")
        if record["code"] != omnipilot.__version__:
            changed.append(f"it was made by version {record['code']} of this program")
        question = _question(record)
        settings = _settings(record["settings"])
        answer = _recorded(record)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(
            f"{path}: the recommendation has another form than version {omnipilot.__version__} "
            f"writes: ask the version that made it ({type(error).__name__}: {error})"
        ) from error
    again = type(advisor)(advisor.home, model=_model(advisor, version))
    again.__dict__["settings"] = settings
    return Replay(again, question, question.now_s, version, answer, tuple(changed))


def _verified(line: bytes, path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
        name = record.pop("id")
        text = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False)
        sound = hashlib.sha256(text.encode()).hexdigest().startswith(name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        sound = False
    if not sound:
        raise StateError(f"{path}: the recommendation was changed after it was written")
    return record


def _model(advisor: Advisor, version: str) -> Any:  # noqa: ANN401 - a cost model
    from omnipilot.costmodel.bundle import base_model_path  # noqa: PLC0415 - only a replay loads
    from omnipilot.costmodel.predict import CostModel  # noqa: PLC0415 - same
    from omnipilot.learn.registry import Registry  # noqa: PLC0415 - same

    shipped = CostModel.load(base_model_path())
    if shipped.version == version:
        return shipped
    registry = Registry(advisor.home)
    if version not in registry.versions():
        raise StateError(
            f"the cost model {version} that answered then is gone: neither the shipped one nor in "
            f"{registry.folder}"
        )
    return CostModel(*registry.load(version))


def _question_data(question: Question, advice: Advice) -> dict[str, Any]:
    """The question as JSON; where it named no GPU kinds, those that the cluster had."""
    data = asdict(question)
    cluster = advice.cluster
    known = cluster is not None and cluster.origin != "none"
    kinds = question.gpus or (tuple(cluster.gpus) if cluster is not None and known else ())
    data.pop("given")
    data.pop("state_file")
    return {
        **data,
        "model_config": str(question.model_config.absolute()) if question.model_config else None,
        "weights": dict(question.weights),
        "gpus": list(kinds),
    }


def _question(record: dict[str, Any]) -> Question:
    data = dict(record["question"])
    request = dict(data.pop("request"))
    slo = Slo(**request.pop("slo"))
    config = data.pop("model_config")
    return replace(
        Question(ServingRequest(**request, slo=slo)),
        **{
            **data,
            "model_config": Path(config) if config else None,
            "gpus": tuple(data["gpus"]),
            "precisions": tuple(data["precisions"]),
            "allow_fetch": False,
            "live": False,
            "ask_starts": False,
            "given": {label: (w, p) for label, (w, p) in record["given"].items()},
        },
    )


def _given(advice: Advice) -> dict[str, tuple[float, float]]:
    """Wait in hours and chance to come up of each ranked arm."""
    known = advice.cluster.arms if advice.cluster is not None else {}
    return {
        r.arm.label: (known[r.arm].wait.expected_h, known[r.arm].chance.probability)
        for r in advice.recommendation.ranked
        if r.arm in known
    }


def _answer(advice: Advice) -> dict[str, Any]:
    """The numbers that a replay is held against, as JSON keeps them."""
    recommendation = advice.recommendation
    return dict(
        plain(
            {
                "ranked": [
                    {
                        "arm": r.arm.label,
                        "total_usd": r.utility.total_usd,
                        "tokens_per_s": r.targets["aggregate_tokens_per_s"].q50,
                    }
                    for r in recommendation.ranked
                ],
                "abstained": recommendation.abstention is not None,
            }
        )
    )


def _recorded(record: dict[str, Any]) -> dict[str, Any]:
    """The answer on record, in the form of :func:`_answer`."""
    ranked = [
        {"arm": str(a["arm"]), **{name: float(a[name]) for name in ("total_usd", "tokens_per_s")}}
        for a in record["answer"]["ranked"]
    ]
    return {**record["answer"], "ranked": ranked}


def _settings_text(home: Path) -> str:
    try:
        return (home / FILE_NAME).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _settings(text: str) -> Settings:
    """Settings as a site's file told them.

    Raises:
        StateError: this version does not read them.
    """
    import tempfile  # noqa: PLC0415 - only a replay needs it

    with tempfile.TemporaryDirectory() as folder:
        if text:
            (Path(folder) / FILE_NAME).write_text(text, encoding="utf-8")
        try:
            return Settings.load(Path(folder))
        except BadInputError as error:
            said = str(error).replace(str(Path(folder) / FILE_NAME), "the settings of then")
            raise StateError(f"{said}: ask the version that made the recommendation") from error


def _facts_digest(home: Path) -> str:
    digest = hashlib.sha256()
    for name in _FACTS:
        for path in sorted((home / name).rglob("*")):
            if path.is_file():
                digest.update(path.relative_to(home).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
