"""A serving engine, iteration by iteration: continuous batching over a paged KV cache.

The scheduler is that of vLLM's V1 core in outline (``vllm/v1/core/sched/scheduler.py``): one budget
of tokens a step, running requests first, then prompts in chunks; a request that finds no free block
pushes out the one that was let in last, which is computed again from its start.

Between two events (a request ends, a prompt can be let in, blocks run out) all steps are alike but
for the growing contexts, so they are taken at once. A running request is kept as its constant
distance to the count of steps, so that a jump costs the same for one request and for a thousand.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from omnipilot.domain.errors import BadInputError
from omnipilot.simulate.deployment import BLOCK_TOKENS
from omnipilot.simulate.kernels import KernelTimer

if TYPE_CHECKING:
    from omnipilot.simulate.deployment import Deployment, Load
    from omnipilot.simulate.kernels import StepCost

__all__ = ["Trace", "serve"]

_MAX_JUMP: Final = 512  # steps taken at once: contexts grow by less than this


@dataclass(slots=True)
class Trace:
    """What happened, in order.

    Args:
        first_token_s: seconds from a request's submission to its first token, (n_requests,).
        per_token_s: mean time of its other tokens, 0 for a single one, (n_requests,).
        latency_s: from its submission to its end, (n_requests,).
        gaps: (seconds between tokens, how many such gaps).
        peak_blocks: most cache blocks in use.
        computed_prompt_tokens: prompt tokens taken in, those of recomputation too.
        recomputed_tokens: of those, the ones that preemption made necessary.
    """

    blocks: int
    first_token_s: list[float]
    per_token_s: list[float]
    latency_s: list[float]
    gaps: list[tuple[float, int]] = field(default_factory=list)
    seconds: float = 0.0
    busy_s: float = 0.0
    active_s: float = 0.0
    tensor_s: float = 0.0
    joules: float = 0.0
    steps: int = 0
    events: int = 0
    preemptions: int = 0
    peak_blocks: int = 0
    peak_running: int = 0
    peak_waiting: int = 0
    computed_prompt_tokens: int = 0
    recomputed_tokens: int = 0
    output_tokens: int = 0
    finished: int = 0


def serve(deployment: Deployment, load: Load, kv_blocks: int) -> Trace:
    """Serve a load to its end.

    Args:
        deployment: engine and GPUs.
        load: the requests.
        kv_blocks: blocks of the cache, from :func:`omnipilot.simulate.startup.start`.

    Raises:
        BadInputError: a request that alone exceeds the cache or the length limit.
    """
    longest = max(p + o for p, o in zip(load.prompt_tokens, load.output_tokens, strict=True))
    if longest > deployment.max_model_len:
        raise BadInputError(
            f"a request of {longest} tokens exceeds max_model_len {deployment.max_model_len}"
        )
    if -(-longest // BLOCK_TOKENS) > kv_blocks:
        raise BadInputError(
            f"a request of {longest} tokens exceeds the cache of {kv_blocks * BLOCK_TOKENS} tokens"
        )
    return _Engine(deployment, load, kv_blocks).run()


class _Engine:
    """The state of one run; ``step`` counts steps, contexts are distances to it."""

    def __init__(self, deployment: Deployment, load: Load, kv_blocks: int) -> None:
        n = len(load.prompt_tokens)
        self.load = load
        self.timer = KernelTimer(deployment)
        self.sequence_limit, self.token_limit = deployment.sequence_limit, deployment.token_limit
        self.free = kv_blocks
        self.trace = Trace(kv_blocks, [0.0] * n, [0.0] * n, [0.0] * n)
        self.submitted_s = [0.0] * n
        self.generated = [0] * n  # up to the last preemption
        self.base = [0] * n
        self.joined = [-1] * n  # step of joining; -1 while not generating
        self.ends: list[tuple[int, int, int]] = []  # (step of the end, request, step of joining)
        self.order: list[tuple[int, int]] = []  # (request, step of joining), oldest first
        self.running = 0
        self.sum_base = 0
        self.phases = [0] * BLOCK_TOKENS
        self.partial: tuple[int, int] | None = None  # (request, tokens in the cache)
        self.n_submitted = min(load.clients, n)
        self.waiting: deque[int] = deque(range(self.n_submitted))
        self.step = 0

    def run(self) -> Trace:
        trace = self.trace
        n, lowest = len(self.load.prompt_tokens), self.free
        while trace.finished < n:
            trace.events += 1
            trace.peak_waiting = max(trace.peak_waiting, len(self.waiting))
            preempted = False
            while self._next_growth() > self.free:
                self._preempt()
                preempted = True
            chunks = [] if preempted else self._admit()
            if chunks:
                self._mixed_step(chunks)
            elif self.running:
                # A request pushed out may come back in the very next step.
                self._jump(1 if preempted else _MAX_JUMP)
            lowest = min(lowest, self.free)
            if self.running and self._next_end() <= self.step:
                self._finish()
        trace.peak_blocks = trace.blocks - lowest
        return trace

    def _next_growth(self) -> int:
        """Blocks that the running requests take in the next step."""
        return self.phases[-self.step % BLOCK_TOKENS]

    def _growth(self, steps: int) -> int:
        """Blocks that the running requests take over the next steps."""
        cycles, rest = divmod(steps, BLOCK_TOKENS)
        phases, at = self.phases, self.step
        grown = cycles * self.running
        if rest:
            first = -at % BLOCK_TOKENS  # phases come up in falling order
            last = first - rest + 1
            grown += sum(phases[max(last, 0) : first + 1])
            if last < 0:
                grown += sum(phases[last:])
        return grown

    def _admit(self) -> list[tuple[int, int, int]]:
        """Take pieces of prompts into the step: (request, tokens, tokens before)."""
        if self.partial is None and not self.waiting:
            return []
        budget = self.token_limit - self.running
        free = self.free - self._next_growth()
        chunks: list[tuple[int, int, int]] = []
        joining = 0
        while budget > 0:
            if self.partial is not None:
                request, before = self.partial
            elif self.waiting and self.running + joining < self.sequence_limit:
                request, before = self.waiting[0], 0
            else:
                break
            total = self.load.prompt_tokens[request] + self.generated[request]
            tokens = min(total - before, budget)
            blocks = _blocks(before + tokens) - _blocks(before)
            if blocks > free:
                break
            if self.partial is None:
                self.waiting.popleft()
            free -= blocks
            self.free -= blocks
            budget -= tokens
            joining += 1
            chunks.append((request, tokens, before))
            self.partial = (request, before + tokens) if before + tokens < total else None
            if self.partial is not None:
                break
        return chunks

    def _mixed_step(self, chunks: list[tuple[int, int, int]]) -> None:
        trace = self.trace
        contexts = self.sum_base + self.running * self.step
        self.free -= self._next_growth()
        cost = self.timer.mixed(self.running, contexts, [(t, b) for _, t, b in chunks])
        self._account(cost, 1)
        self.step += 1
        trace.computed_prompt_tokens += sum(tokens for _, tokens, _ in chunks)
        done = chunks[:-1] if self.partial is not None else chunks
        for request, _, _ in done:
            self._join(request)

    def _join(self, request: int) -> None:
        """Let a request whose prompt is in the cache generate."""
        trace = self.trace
        self.generated[request] += 1
        trace.output_tokens += 1
        if not trace.first_token_s[request]:
            trace.first_token_s[request] = trace.seconds - self.submitted_s[request]
        context = self.load.prompt_tokens[request] + self.generated[request]
        base = context - self.step
        self.base[request], self.joined[request] = base, self.step
        self.running += 1
        trace.peak_running = max(trace.peak_running, self.running)
        self.sum_base += base
        self.phases[(base - 1) % BLOCK_TOKENS] += 1
        left = self.load.output_tokens[request] - self.generated[request]
        heapq.heappush(self.ends, (self.step + left, request, self.step))
        self.order.append((request, self.step))

    def _jump(self, limit: int) -> None:
        """Take all steps up to the next event at once, at most ``limit``."""
        steps = max(min(self._next_end() - self.step, limit), 1)
        grown = self._growth(steps)
        if grown > self.free:
            low, high = 1, steps  # low fits: a request was pushed out otherwise
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self._growth(middle) <= self.free else (low, middle)
            steps, grown = low, self._growth(low)
        self.free -= grown
        contexts = self.sum_base + self.running * (self.step + (steps - 1) / 2.0)
        self._account(self.timer.decode(self.running, contexts), steps)
        self.step += steps

    def _account(self, cost: StepCost, steps: int) -> None:
        trace = self.trace
        trace.seconds += cost.seconds * steps
        trace.busy_s += cost.busy_s * steps
        trace.active_s += cost.active_s * steps
        trace.tensor_s += cost.tensor_s * steps
        trace.joules += cost.joules * steps
        trace.steps += steps
        if self.running:
            trace.gaps.append((cost.seconds, self.running * steps))
            trace.output_tokens += self.running * steps

    def _next_end(self) -> int:
        while self.ends[0][2] != self.joined[self.ends[0][1]]:
            heapq.heappop(self.ends)  # of a request that was pushed out meanwhile
        return self.ends[0][0]

    def _finish(self) -> None:
        trace, load = self.trace, self.load
        while self.running and self._next_end() <= self.step:
            _, request, _ = heapq.heappop(self.ends)
            self._leave(request)
            first = trace.first_token_s[request]
            latency = trace.seconds - self.submitted_s[request]
            output = load.output_tokens[request]
            trace.latency_s[request] = latency
            trace.per_token_s[request] = (latency - first) / (output - 1) if output > 1 else 0.0
            trace.finished += 1
            if self.n_submitted < len(load.prompt_tokens):
                self.submitted_s[self.n_submitted] = trace.seconds
                self.waiting.append(self.n_submitted)
                self.n_submitted += 1

    def _leave(self, request: int) -> None:
        """Take a generating request out and free its blocks."""
        base = self.base[request]
        self.free += _blocks(self.step + base - 1)
        self.running -= 1
        self.sum_base -= base
        self.phases[(base - 1) % BLOCK_TOKENS] -= 1
        self.joined[request] = -1

    def _preempt(self) -> None:
        """Push out the request that was let in last; it is computed again from its start."""
        self.trace.preemptions += 1
        if self.partial is not None:
            request, held = self.partial
            self.partial = None
            self.free += _blocks(held)
            self.trace.recomputed_tokens += held
        else:
            request, joined = self.order.pop()
            while self.joined[request] != joined:
                request, joined = self.order.pop()
            self.generated[request] = (
                self.step + self.base[request] - (self.load.prompt_tokens[request])
            )
            self.trace.recomputed_tokens += self.step + self.base[request]
            self._leave(request)
        self.waiting.appendleft(request)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)
