"""One site's advisor: the facts, the settings and the cost model behind every use case."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from omnipilot.advisor.kept import Kept
from omnipilot.catalog import Catalog
from omnipilot.settings import LOG_NAME, Settings, check_home, default_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from omnipilot.advisor.arm_sheet import ArmSheet
    from omnipilot.advisor.cluster_now import ClusterNow
    from omnipilot.advisor.digest import Digest
    from omnipilot.advisor.predict import Batch
    from omnipilot.advisor.predictor import Predictor
    from omnipilot.advisor.question import Advice, Explanation, Launch, Question
    from omnipilot.domain import FitVerdict, ModelArch
    from omnipilot.domain.scenario import ScenarioGroup
    from omnipilot.store import ImportReport, StoreStats


# Kept of earlier questions: judged arms by model and context length (some 100 KiB each), and arms
# as the cost model sees them (1 MiB with what it keeps beside them).
MOST_SHEETS: Final = 128
MOST_GROUPS: Final = 32
MOST_MODELS: Final = 256


class Advisor:
    """The use cases of one site; a folder that does not exist means the defaults.

    Facts, settings and the cost model are read when first needed.

    Args:
        home: the site's folder.
        model: the cost model to ask; the site's own where None, else the shipped base model.
    """

    def __init__(self, home: Path, *, model: Predictor | None = None) -> None:
        self.home = home
        self._model = model
        self._cluster: tuple[object, ClusterNow] | None = None
        self.sheets: Kept[ArmSheet] = Kept(MOST_SHEETS)
        self.groups: Kept[ScenarioGroup] = Kept(MOST_GROUPS)
        self._models: Kept[ModelArch] = Kept(MOST_MODELS)
        self.log_path = home / LOG_NAME

    @classmethod
    def open(cls, home: Path | None = None) -> Advisor:
        """Open a site; ``OMNIPILOT_HOME`` or the user's data folder where ``home`` is None.

        Raises:
            StateError: anybody can write in its folder.
        """
        home = home or default_home()
        check_home(home)
        return cls(home)

    def answering_by(self, model: Predictor) -> Advisor:
        """The same site as it was read, its answers by another cost model.

        Raises:
            BadInputError: a file of the site's folder that cannot be read.
        """
        other = Advisor(self.home, model=model)
        vars(other).update(catalog=self.catalog, settings=self.settings)
        other._cluster = self._cluster
        return other

    @cached_property
    def catalog(self) -> Catalog:
        """GPU kinds, models and precisions, with the site's own.

        Raises:
            BadInputError: a file of the site's folder that cannot be read.
        """
        return Catalog.load(self.home)

    @cached_property
    def settings(self) -> Settings:
        """Prices and habits of the site.

        Raises:
            BadInputError: a settings file that cannot be read or names an unknown GPU kind.
        """
        settings = Settings.load(self.home)
        settings.check_kinds(gpu.kind for gpu in self.catalog.gpus())
        return settings

    @cached_property
    def model(self) -> Predictor:
        """The cost model: the site's current bundle, else the shipped one.

        Raises:
            BundleError: the bundle is missing, damaged or of another version.
        """
        if self._model is not None:
            return self._model
        from omnipilot.costmodel.bundle import base_model_path  # noqa: PLC0415 - quick look-ups
        from omnipilot.costmodel.predict import CostModel  # noqa: PLC0415 - same

        own = self.home / "bundles" / "current"
        # A pointer into nothing is a lost model: the shipped one must not stand in for it unsaid.
        return CostModel.load(own if own.exists() or own.is_symlink() else base_model_path())

    def resolve_model(
        self, model_id: str, config: Path | None = None, *, allow_fetch: bool = False
    ) -> ModelArch:
        """Find a model's structure; a name once for all, a path whenever it is asked for.

        Args:
            model_id: Hugging Face id, or another spelling of it.
            config: a ``config.json`` or its folder; it wins over the table.
            allow_fetch: fetch the config of an unknown id from the hub.

        Raises:
            UnknownNameError: no such model and no config.
            BadInputError: a config that cannot be read.
        """
        if config is not None or allow_fetch:
            return self.catalog.model(model_id, config, allow_fetch=allow_fetch)
        found = self._models.get(model_id)
        if found is None:
            found = self.catalog.model(model_id)
            if not _may_be_path(model_id):
                self._models.put(model_id, found)
        return found

    def cluster(self, question: Question) -> ClusterNow:
        """What is known of the cluster at the time of a question; read once for all alike.

        Raises:
            BadInputError: the question's file holds no cluster state.
            StateError: a log of the site cannot be read.
        """
        key = (question.live, question.state_file, question.now_s)
        if self._cluster is None or self._cluster[0] != key:
            from omnipilot.advisor.cluster_now import observe  # noqa: PLC0415 - only for advice

            found = observe(
                self, live=question.live, state_file=question.state_file, now_s=question.now_s
            )
            self._cluster = (key, found)
        return self._cluster[1]

    def digest(self, now_s: float, *, anew: bool = False) -> Digest:
        """What the site's logs say before a launch; ``anew`` reads them however long they are.

        Raises:
            StateError: a log cannot be read.
        """
        from omnipilot.advisor.digest import read_digest, refresh_digest  # noqa: PLC0415 - NumPy

        if anew:
            return refresh_digest(self.home, now_s=now_s, site=self.settings)
        return read_digest(self.home, now_s=now_s, site=self.settings)[0]

    def advise(self, question: Question, *, top: int | None = None) -> Advice:
        """Rank the arms of a request.

        Args:
            question: the request, with the wishes for the decision.
            top: arms to tell of, best first; all are compared whatever it is, and told where None.

        Raises:
            UsageError: an unknown model, GPU kind, precision, engine, profile or term.
            BundleError: no usable cost model.
        """
        from omnipilot.advisor.advising import advise  # noqa: PLC0415 - NumPy takes 0.1 s

        return advise(self, question, top)

    def explain(self, question: Question) -> Explanation:
        """Rank the arms of a request and gather the grounds.

        Raises:
            UsageError: as :meth:`advise`.
            BundleError: no usable cost model.
        """
        from omnipilot.advisor.explaining import explain  # noqa: PLC0415 - NumPy takes 0.1 s

        return explain(self, question)

    def fits(self, launch: Launch) -> FitVerdict:
        """Say whether a launch starts, and which number decides.

        Raises:
            UsageError: an unknown model, GPU kind, precision, cache format or engine.
        """
        from omnipilot.advisor.fitting import fits  # noqa: PLC0415 - only used here

        return fits(self, launch)

    def predict(self, path: Path) -> Iterator[Batch]:
        """Answer every row of a CSV file of the normalised columns, in order.

        Raises:
            BadInputError: the file cannot be read or lacks columns.
            BundleError: no usable cost model.
        """
        from omnipilot.advisor.fitting import judge_row  # noqa: PLC0415 - only used here
        from omnipilot.advisor.predict import RowPredictor  # noqa: PLC0415 - same

        return RowPredictor(self.catalog, self.model, judge_row).file(path)

    def import_runs(
        self, path: Path, *, now_s: float, on_progress: Callable[[int], None] | None = None
    ) -> ImportReport:
        """Take the measured rows of a file into the site's store.

        Raises:
            BadInputError: the file as a whole cannot be read; the store is unchanged.
            StateError: the store cannot be written.
        """
        from omnipilot.advisor.unknown_names import UnknownNames  # noqa: PLC0415 - only used here
        from omnipilot.collect import collect_csv  # noqa: PLC0415 - same
        from omnipilot.store import Store, import_items  # noqa: PLC0415 - same

        names = UnknownNames(lambda: self.catalog)
        rows = names.watch(collect_csv(path))
        report = import_items(Store.open(self.home), rows, now_s=now_s, on_progress=on_progress)
        return replace(report, unknown_names=names.found())

    def data_stats(self) -> StoreStats:
        """Count what the site's store holds.

        Raises:
            StateError: the store cannot be read.
        """
        from omnipilot.store import Store, stats  # noqa: PLC0415 - only used here

        return stats(Store(self.home))


def _may_be_path(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False
