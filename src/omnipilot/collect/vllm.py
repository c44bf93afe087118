"""Any file that vLLM leaves behind: a benchmark's result, a /metrics page or a server's log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from omnipilot.collect.context import NO_CONTEXT, RunContext
from omnipilot.collect.lines import Limits, open_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from omnipilot.domain.rejection import Rejection
    from omnipilot.domain.rows import Row

__all__ = ["collect_vllm"]

_HEAD_LINES: Final = 200
# A log may begin with a bracket too: "[W1129 13:14:44 socket.cpp:200] ...".
_JSON: Final = re.compile(rb"\s*(?:\{|\[\s*(?:[{\]]|$))")
_PAGE: Final = re.compile(rb"# (?:HELP|TYPE) [A-Za-z_:]|vllm:[a-z_]+[{ ]")


def collect_vllm(path: Path, *, context: RunContext = NO_CONTEXT) -> Iterator[Row | Rejection]:
    """Read a file by the collector that its first lines call for.

    Args:
        path: the file, plain or gzip-compressed.
        context: what the file does not tell.

    Yields:
        What ``collect_vllm_bench``, ``collect_vllm_metrics`` or ``collect_vllm_log`` yields.

    Raises:
        BadInputError: the file as a whole cannot be read.
    """
    with open_lines(path, Limits(), "a benchmark, /metrics page or log of vLLM") as lines:
        is_json = _JSON.match(lines.peek()) is not None
        is_page = not is_json and any(
            _PAGE.match(line) for (_, line), _n in zip(lines, range(_HEAD_LINES), strict=False)
        )
    if is_json:
        from omnipilot.collect.vllm_bench import collect_vllm_bench  # noqa: PLC0415 - only one

        yield from collect_vllm_bench(path, context=context)
    elif is_page:
        from omnipilot.collect.vllm_metrics import collect_vllm_metrics  # noqa: PLC0415 - same

        yield from collect_vllm_metrics(path, context=context)
    else:
        from omnipilot.collect.vllm_log import collect_vllm_log  # noqa: PLC0415 - same

        yield from collect_vllm_log(path, context=context)
