from omnipilot.advisor import Advice as Advice
from omnipilot.advisor import Advisor as Advisor
from omnipilot.advisor import Launch as Launch
from omnipilot.advisor import Question as Question
from omnipilot.domain import ServingRequest as ServingRequest
from omnipilot.domain import Slo as Slo

__version__: str
__all__ = ["Advice", "Advisor", "Launch", "Question", "ServingRequest", "Slo", "__version__"]
