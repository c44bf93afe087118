"""The site behind the tools: one advisor, opened again when the site's files change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omnipilot.advisor import Advisor, Question
from omnipilot.advisor.site_stamp import stamp_of
from omnipilot.domain import ServingRequest, Slo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from omnipilot.advisor.outlook import ClusterReport
    from omnipilot.advisor.site_stamp import Stamp

__all__ = ["Site"]


@dataclass
class Site:
    """What the tools ask.

    Args:
        home: the site's folder.
        live: ask Slurm how the cluster is.
        clock: Unix seconds.
        open_advisor: makes an advisor of the folder.
    """

    home: Path
    live: bool
    clock: Callable[[], float]
    open_advisor: Callable[[Path], Advisor] = Advisor.open
    _opened: tuple[Stamp, Advisor] | None = field(default=None)

    @property
    def advisor(self) -> Advisor:
        """The advisor of the site as its files are now."""
        stamp = stamp_of(self.home)
        if self._opened is None or self._opened[0] != stamp:
            self._opened = (stamp, self.open_advisor(self.home))
        return self._opened[1]

    def question(
        self,
        model: str,
        concurrency: int,
        context_tokens: int,
        *,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        hours: float = 1.0,
        slo_ttft_ms: float | None = None,
        slo_tpot_ms: float | None = None,
        gpus: Sequence[str] = (),
        precisions: Sequence[str] = (),
        profile: str | None = None,
        value_per_token_usd: float | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> Question:
        """The question that an agent asks.

        Raises:
            BadInputError: a count or a limit that cannot be.
        """
        prompt, output = ServingRequest.with_lengths(context_tokens, prompt_tokens, output_tokens)
        return Question(
            request=ServingRequest(
                model_id=model, concurrency=concurrency, context_tokens=context_tokens,
                prompt_tokens=prompt, output_tokens=output, duration_h=hours,
                slo=Slo(
                    None if slo_ttft_ms is None else slo_ttft_ms / 1e3,
                    None if slo_tpot_ms is None else slo_tpot_ms / 1e3,
                ),
            ),
            gpus=tuple(gpus), precisions=tuple(precisions), profile=profile,
            weights=dict(weights or {}), value_per_token_usd=value_per_token_usd,
            live=self.live, now_s=self.clock(),
        )  # fmt: skip

    def cluster(self) -> ClusterReport:
        """What is known of the cluster."""
        from omnipilot.advisor.outlook import Outlook  # noqa: PLC0415 - next to its use

        question = self.question("none", 1, 2)
        return Outlook(self.advisor.cluster(question), question.request, 1.0).report({})
