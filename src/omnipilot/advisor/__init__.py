"""The use cases: advise, explain, fits, predict and the data store, and nothing that renders."""

from omnipilot.advisor.advisor import Advisor
from omnipilot.advisor.predictor import Predictions, Predictor
from omnipilot.advisor.question import Advice, Explanation, Launch, Question
from omnipilot.advisor.turning import TurningPoint

__all__ = [
    "Advice",
    "Advisor",
    "Explanation",
    "Launch",
    "Predictions",
    "Predictor",
    "Question",
    "TurningPoint",
]
