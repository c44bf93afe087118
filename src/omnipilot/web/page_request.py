"""The request that an address of a page holds: the same words as the API's, in the query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from pydantic import ValidationError

from omnipilot.domain.frozen import dataclass
from omnipilot.web.asking import AskBody

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FIELDS", "Asked", "Field", "read_query"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the form.

    Args:
        name: of the API's body and of the query.
        label: for a person.
        kind: "text", "whole", "number" or "names".
        group: where the form shows it: "load", "limits", "objective" or "choice".
        hint: what it means, or what happens where it is left out.
        unit: shown after it.
        slider: (least, most, by ratio) of a slider beside it; None for none.
        example: shown in the empty field.
    """

    name: str
    label: str
    kind: str
    group: str
    hint: str = ""
    unit: str = ""
    slider: tuple[float, float, bool] | None = None
    example: str = ""


FIELDS: Final[tuple[Field, ...]] = (
    Field("model", "Model", "text", "load", "Hugging Face id", example="Qwen/Qwen2.5-7B-Instruct"),
    Field("concurrency", "Concurrent requests", "whole", "load", "in flight at the same time"),
    Field("context_tokens", "Context", "whole", "load", "longest request, prompt and output",
          "tokens"),
    Field("hours", "Hours", "number", "load", "how long the server is to run", "h"),
    Field("prompt_tokens", "Typical prompt", "whole", "limits", "3/4 of the context if empty",
          "tokens"),
    Field("output_tokens", "Typical output", "whole", "limits", "the rest if empty", "tokens"),
    Field("slo_ttft_ms", "Time to first token", "number", "limits", "limit of the median", "ms"),
    Field("slo_tpot_ms", "Time per output token", "number", "limits", "limit of the median", "ms"),
    Field("profile", "Operating point", "text", "objective"),
    Field("value_per_token_usd", "Value of a token", "number", "objective", "", "USD",
          (1e-8, 1e-4, True)),
    Field("electricity_usd_per_kwh", "Electricity", "number", "objective", "", "USD/kWh",
          (0.0, 1.0, False)),
    Field("wait_cost_usd_per_h", "Waiting in the queue", "number", "objective", "", "USD/h",
          (0.0, 50.0, False)),
    Field("slo_penalty_usd_per_h", "Missing the limits", "number", "objective", "", "USD/h",
          (0.0, 100.0, False)),
    Field("gpus", "Only these GPU kinds", "names", "choice", "separated by commas; all if empty",
          example="h100-80, a100-80"),
    Field("precisions", "Only these precisions", "names", "choice",
          "separated by commas; all if empty", example="bf16, fp8"),
    Field("engine_version", "Engine version", "text", "choice", "newest known if empty"),
)  # fmt: skip
_BY_NAME: Final = {field.name: field for field in FIELDS}
_MOST_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class Asked:
    """What the query says.

    Args:
        body: the request; None where there is none or it is wrong.
        texts: what stands in the form, by field.
        errors: what is wrong, by field; "" for the whole.
    """

    body: AskBody | None
    texts: dict[str, str]
    errors: dict[str, str]

    def link(self, path: str, **more: object) -> str:
        """An address that holds this request and more."""
        pairs = [(name, self.texts[name]) for name in _BY_NAME if name in self.texts]
        pairs += [(name, str(value)) for name, value in more.items() if value not in (None, "")]
        return f"{path}?{urlencode(pairs)}" if pairs else path


def read_query(query: Mapping[str, str]) -> Asked:
    """Read the request out of an address; fields that are empty count as left out."""
    texts = {
        field.name: query[field.name].strip()[:_MOST_CHARACTERS]
        for field in FIELDS
        if query.get(field.name, "").strip()
    }
    if not texts:
        return Asked(None, texts, {})
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, text in texts.items():
        try:
            values[name] = _value(_BY_NAME[name].kind, text)
        except (ValueError, OverflowError):
            errors[name] = f"'{text[:40]}' is not a number"
    if errors:
        return Asked(None, texts, errors)
    try:
        return Asked(AskBody.model_validate(values), texts, {})
    except ValidationError as error:
        for found in error.errors(include_url=False, include_input=False):
            name = str(found["loc"][0]) if found["loc"] else ""
            missing = found["type"] == "missing"
            errors.setdefault(name, "is needed" if missing else _sentence(found["msg"]))
        return Asked(None, texts, errors)


def _value(kind: str, text: str) -> Any:  # noqa: ANN401 - as the field's kind
    if kind == "whole":
        number = float(text.replace(",", "").replace("_", ""))
        if number != int(number):
            raise ValueError(text)
        return int(number)
    if kind == "number":
        return float(text.replace(",", ""))
    if kind == "names":
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _sentence(message: str) -> str:
    return message.removeprefix("Input ").removeprefix("Value error, ")
