"""The parts of a chat body that are about tools: functions offered, the choice of one, calls made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from liveedge.api.strict import StrictBody

MAX_TOOLS: Final = 128


class Function(StrictBody):
    """`function` of a tool."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="a JSON schema of an object; left out: the function has no parameters"
    )
    strict: bool | None = Field(None, description="true: calls are held to the whole schema")

    @model_validator(mode="after")
    def _takes_an_object(self) -> Self:
        kind = (self.parameters or {}).get("type", "object")
        if kind != "object":
            raise ValueError(f"the parameters of {self.name} must be of type object")
        return self


class Tool(StrictBody):
    """One of `tools`. Another type than `function` is known later, so that it is refused by name."""

    type: str = Field(max_length=100)
    function: Function | None = None

    @model_validator(mode="after")
    def _has_its_function(self) -> Self:
        if self.type == "function" and self.function is None:
            raise ValueError("a tool of type function needs the field function")
        return self


class FunctionName(StrictBody):
    """`tool_choice.function`."""

    name: str


class ChosenTool(StrictBody):
    """`tool_choice` as an object: this function has to be called."""

    type: str = Field(max_length=100)
    function: FunctionName | None = None

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if self.type == "function" and self.function is None:
            raise ValueError("a tool_choice of type function needs function.name")
        return self


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | ChosenTool


class CalledFunction(StrictBody):
    """`function` of a call."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str | dict[str, Any] | None = Field(None, description="JSON as text, or an object")


class ToolCall(StrictBody):
    """One of `tool_calls` of an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


def distinct(tools: list[Tool]) -> list[Tool]:
    """Two functions of one name could not be told apart in a call."""
    names = [tool.function.name for tool in tools if tool.function is not None]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"tools has two functions of the name {name}")
    return tools


def check_choice(choice: ToolChoice | None, tools: Sequence[Tool]) -> None:
    """Refuse a call of what is not offered."""
    if choice in (None, "auto", "none"):
        return
    if not tools:
        raise ValueError("this tool_choice asks for a call, and tools offers none")
    if not isinstance(choice, ChosenTool) or choice.function is None:
        return
    names = [tool.function.name for tool in tools if tool.function is not None]
    if choice.function.name not in names:
        raise ValueError(
            f"tool_choice names {choice.function.name[:64]}, tools has no such function"
        )
