"""Conversations and prompts with completions: what a record holds of them, and their token ids, joined as TRL
does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isomerge.errors import IsomergeError, first_line
from isomerge.observe.data.tensors import plain
from isomerge.observe.data.text import Encoder

Message = dict[str, Any]

TURNS = ("messages", "conversations", "conversation")
"""Fields with a whole conversation."""
SPEAKERS = {"human": "user", "gpt": "assistant"} | {role: role for role in ("user", "assistant", "system", "tool")}
"""Who speaks in the form of ShareGPT, and the role that chat templates call it."""
QUESTIONS, ANSWERS = ("prompt", "instruction"), ("output", "response", "chosen", "rejected")
"""Fields that say not how they are joined."""
PROBE = "isomerge"
TODAY = "".join(
    f"|replace('{code}', '{told}')"
    for code, told in (
        ("%d", "26"), ("%m", "07"), ("%Y", "2024"), ("%y", "24"), ("%b", "Jul"), ("%B", "July"), ("%a", "Fri"),
        ("%A", "Friday"), ("%H", "00"), ("%M", "00"), ("%S", "00"),
    )
)  # fmt: skip
CLOCK = "{%- macro strftime_now(format) -%}{{ format" + TODAY + " }}{%- endmacro %}\n"
"""Jinja in front of templates that write today's date: the day that Llama's name where there is no clock, so that
the same data are the same tokens tomorrow."""


@dataclass(frozen=True)
class Chat:
    """What is said in one example: texts, or lists of messages with ``role`` and ``content``."""

    completion: str | list[Message]
    """What is predicted."""
    prompt: str | list[Message] | None = None
    """What stands before it and is not predicted, of the same kind; None where all is predicted."""
    tools: list[Any] | None = None
    """Descriptions of tools, for the template."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the template."""


def chat_of(fields: Mapping[str, Any], where: str) -> Chat | None:
    """The conversation, or the prompt and its completion, that a record holds; None where it has neither, or a
    ``text``.

    ``messages`` (also ``conversations``, ``conversation``) is a list of messages, in the form of OpenAI (``role``,
    ``content``) or of ShareGPT (``from``, ``value``). ``prompt`` and ``completion`` are two texts, or two such
    lists. ``tools`` and ``chat_template_kwargs`` are for the template.

    Raises:
        IsomergeError: messages that are none or hold no text, and fields that could be joined in several ways.
    """
    if isinstance(fields.get("text"), str):
        return None
    extra: Message = {}
    if tools := _listed(fields.get("tools"), where):
        extra["tools"] = tools
    if isinstance(options := fields.get("chat_template_kwargs"), Mapping):
        extra["options"] = _filled(options)
    for name in TURNS:
        if isinstance(turns := plain(fields.get(name)), (list, tuple)):
            return Chat(_messages(turns, f"{where}, {name}"), **extra)
        if isinstance(turns, Mapping):
            raise IsomergeError(f"{where}: {name} are one object: give a list of messages")
    prompt, completion = (plain(fields.get(name)) for name in ("prompt", "completion"))
    if isinstance(prompt, str) and isinstance(completion, str):
        return Chat(completion, prompt)
    if isinstance(prompt, (list, tuple)) and isinstance(completion, (list, tuple)):
        return Chat(_messages(completion, f"{where}, completion"), _messages(prompt, f"{where}, prompt"), **extra)
    _check_clear(fields, where)
    if isinstance(prompt, (list, tuple)) or isinstance(completion, (list, tuple)):
        raise IsomergeError(
            f"{where}: prompt and completion must be two texts or two lists of messages: name a whole "
            f"conversation messages"
        )
    return None


def _check_clear(fields: Mapping[str, Any], where: str) -> None:
    """Refuse questions with answers under names that say not how they are joined, of which one alone would be
    read."""
    if "target" in fields:
        return
    asked = [name for name in QUESTIONS if fields.get(name) is not None]
    answers = [name for name in ANSWERS if fields.get(name) is not None]
    if answers and (asked or answers == ["chosen", "rejected"]):
        raise IsomergeError(
            f"{where} has {' and '.join([*asked, *answers])}, which could be joined in several ways: write "
            "messages, prompt and completion, or one text"
        )


def _listed(tools: Any, where: str) -> list[Any]:
    """Descriptions of tools: a list, or one as JSON."""
    try:
        descriptions = json.loads(tools) if isinstance(tools, str) and tools else tools
    except (ValueError, RecursionError):
        raise IsomergeError(f"{where}: tools are no JSON: give a list of their descriptions") from None
    return _filled(list(descriptions)) if isinstance(descriptions, (list, tuple)) else []


def _messages(turns: Sequence[Any], where: str) -> list[Message]:
    """Messages with role and content, and what else OpenAI's form says of them."""
    if not turns:
        raise IsomergeError(f"{where} is empty: leave it out")
    messages = []
    for number, turn in enumerate(turns, 1):
        place = f"{where}, message {number}"
        if not isinstance(turn, Mapping):
            raise IsomergeError(f'{place} is no message: write {{"role": "user", "content": "..."}}')
        message = _filled(turn)
        if "role" not in message and "from" in message:
            speaker = str(message["from"])
            if speaker not in SPEAKERS:
                raise IsomergeError(
                    f"{place} is from {speaker[:60]!r}, who is none of {', '.join(SPEAKERS)}: rename the speaker"
                )
            message = {"role": SPEAKERS[speaker], "content": message.get("value")}
        if not isinstance(message.get("role"), str):
            raise IsomergeError(f'{place} has no role: write {{"role": "user", "content": "..."}}')
        messages.append(_with_text(message, place))
    return messages


def _with_text(message: Message, where: str) -> Message:
    """The message with its content as one text; without any where it calls tools instead."""
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return message
    if isinstance(content, (list, tuple)):
        parts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        content = "".join(part for part in parts if isinstance(part, str))
        if not all(isinstance(part, str) for part in parts):
            content = None
    if not isinstance(content, str):
        raise IsomergeError(f"{where} has no text as its content, or more than text: give texts alone")
    return {**message, "content": content}


def _filled(value: Any) -> Any:
    """Without what is None: columns of a data set have every key in every row."""
    if isinstance(value, Mapping):
        return {key: _filled(item) for key, item in value.items() if item is not None}
    return [_filled(item) for item in value] if isinstance(value, (list, tuple)) else value


class ChatReader:
    """Token ids of what is said, by the tokenizer of a checkpoint and its chat template."""

    def __init__(self, folder: Path, encoder: Encoder) -> None:
        self.folder, self.encoder = folder, encoder
        self._parts: bool | None = None

    def read(self, chat: Chat, where: str) -> tuple[list[int], int]:
        """Token ids, cut to the length that is read, and how many of them stand before what is predicted.

        Two texts are read as one, closed by the tokenizer's end token where it has one and does not write it
        itself; messages as the template writes them. What is predicted begins where the ids differ from those of
        the prompt alone, with the template's opening of an answer behind it.

        Raises:
            IsomergeError: messages without a chat template, or that it refuses.
        """
        said, prompt = chat.completion, chat.prompt
        if isinstance(said, str):
            ids, before = self._joined(str(prompt or ""), said)
        elif isinstance(prompt, list):
            opened = prompt[-1]["role"] != "assistant"
            ids = self._templated([*prompt, *said], chat, where)
            before = self._templated(prompt, chat, where, add_generation_prompt=opened)
        else:
            ids, before = self._templated(said, chat, where), []
        ids = ids[: self.encoder.length]
        differs = (k for k, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b)
        return ids, next(differs, min(len(before), len(ids)))

    def _joined(self, prompt: str, completion: str) -> tuple[list[int], list[int]]:
        """The ids of both, closed by the end token unless it is there, and of the prompt alone."""
        coder, end = self.encoder, ""
        if coder.tokenizer is not None and coder.tokenizer.eos_token_id not in (None, *coder.suffix):
            end = coder.tokenizer.eos_token
        closed = completion if completion.endswith(end) else completion + end
        ids = [*coder.prefix, *coder.plain(prompt + closed), *coder.suffix]
        return ids, [*coder.prefix, *coder.plain(prompt)]

    def _templated(self, messages: Any, chat: Chat, where: str, **asked: bool) -> list[int]:
        """The ids of a conversation."""
        if not getattr(self.encoder.tokenizer, "chat_template", None):
            raise IsomergeError(
                f"{where} is a conversation, and the tokenizer in {self.folder} has no chat template: copy the "
                f"chat_template.jinja of a "
                "model that was tuned on conversations there, or write every example as one text"
            )
        if self._parts is None:
            self._parts = self._reads_parts(chat)
        if self._parts:
            messages = [
                {**m, "content": [{"type": "text", "text": m["content"]}]} if "content" in m else m
                for m in messages
            ]
        try:
            return list(self._apply(messages, chat, tokenize=True, return_dict=False, **asked))
        except Exception as error:  # as many types as there are templates
            raise IsomergeError(
                f"{where}: the chat template of {self.folder} refuses this conversation ({first_line(error)})"
            ) from error

    def _apply(self, messages: Any, chat: Chat, **asked: Any) -> Any:
        tokenizer: Any = self.encoder.tokenizer
        template = tokenizer.get_chat_template(None, chat.tools)
        template = CLOCK + template if "strftime_now" in template else template
        quiet = {"verbose": False}  # of more tokens than are read: they are cut
        return tokenizer.apply_chat_template(
            messages, tools=chat.tools, chat_template=template, tokenizer_kwargs=quiet, **asked, **chat.options
        )

    def _reads_parts(self, chat: Chat) -> bool:
        """Whether the template leaves out contents that are plain texts, as some of models that see do: it wants
        lists of parts."""
        try:
            return PROBE not in self._apply([{"role": "user", "content": PROBE}], chat, tokenize=False)
        except Exception:  # told when a conversation is refused
            return False
