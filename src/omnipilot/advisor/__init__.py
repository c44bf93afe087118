"""The use cases: advise, explain, fits, predict, and the data store. Nothing here renders."""

from omnipilot.advisor.advisor import Advisor
from omnipilot.advisor.predict import Batch
from omnipilot.advisor.question import Advice, Explanation, Question
from omnipilot.advisor.turning import TurningPoint

__all__ = ["Advice", "Advisor", "Batch", "Explanation", "Question", "TurningPoint"]
