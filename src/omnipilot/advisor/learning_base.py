"""The use case "fit --data": a new base model of measured rows, kept among the versions."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from omnipilot.costmodel.bundle import load_bundle
from omnipilot.costmodel.fit import fit_cost_model
from omnipilot.evaluate.digests import code_digest, dataset_digest
from omnipilot.learn.kept_folds import KeptFolds
from omnipilot.learn.registry import Registry
from omnipilot.learn.train import CARD_FILE, model_card, render_card
from omnipilot.store.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from omnipilot.advisor.advisor import Advisor
    from omnipilot.learn.dataset import Dataset

__all__ = ["FITS_FOLDER", "fit_base", "kept_folds"]

# Where a base fit keeps its folds until it is done, below a site's folder.
FITS_FOLDER = Path("cache", "fits")


def fit_base(
    advisor: Advisor, dataset: Dataset, progress: Callable[[str], None] = lambda _: None
) -> str:
    """Fit a base model and keep it among the site's versions.

    One that was fitted on the same rows by the same code is taken as it is, so that a run that was
    killed after the fit goes on from there.

    Args:
        advisor: the site.
        dataset: screened rows.
        progress: told in words what is being done.

    Returns:
        Its version.

    Raises:
        StateError: the site's folder cannot be written.
    """
    registry = Registry(advisor.home)
    digest = _training_digest(dataset)
    for version in registry.versions():
        card = registry.load(version)[1]
        if card.get("training_digest") == digest:
            progress(f"base model {version} was fitted on these rows before")
            return version
    kept = kept_folds(advisor.home, dataset)
    model = fit_cost_model(dataset.data, progress=progress, kept=kept)
    card = {**model_card(dataset, model), "training_digest": digest}
    version = registry.add(model, card, {})
    _, card, _ = load_bundle(registry.path(version))
    page = render_card(version, card).encode()
    replace_file(registry.path(version) / CARD_FILE, page, locked=False)
    kept.clear()
    return version


def kept_folds(home: Path, dataset: Dataset) -> KeptFolds:
    """Where a base fit of these rows by this code keeps its folds until it is done."""
    return KeptFolds(home / FITS_FOLDER / _training_digest(dataset)[:16])


def _training_digest(dataset: Dataset) -> str:
    text = f"{dataset_digest(dataset)}|{code_digest()}"
    return hashlib.sha256(text.encode()).hexdigest()
