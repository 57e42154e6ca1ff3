"""Appending messages only appends text, so that a conversation's next prompt begins with its last one.

Rendered with the engines' own Jinja, as vLLM does it.
"""

import json
import subprocess
from itertools import pairwise
from typing import Any

import pytest

from tests.deploy.conftest import ROOT

TEMPLATE = ROOT / "deploy" / "local" / "chat_template.jinja"
RENDER = """
import json, sys
from jinja2.sandbox import ImmutableSandboxedEnvironment
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
template = environment.from_string(open(sys.argv[1]).read())
print(json.dumps([template.render(**case) for case in json.load(sys.stdin)]))
"""
TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": {"path": "a.py"}}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "You are careful."},
    {"role": "user", "content": "Read a.py."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "print(1)", "tool_call_id": "c1"},
    {"role": "tool", "content": "print(2)", "tool_call_id": "c2"},
    {"role": "assistant", "content": "<think>Hm.</think>It prints."},
    {"role": "user", "content": "Thanks."},
]


def render(*cases: dict[str, Any]) -> list[str]:
    command = [str(ROOT / ".venv-engine" / "bin" / "python"), "-c", RENDER, str(TEMPLATE)]
    result = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=True)
    rendered: list[str] = json.loads(result.stdout)
    return rendered


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_each_prefix_of_a_conversation_is_a_prefix_of_its_text(tools: list[Any] | None) -> None:
    lengths = range(1, len(CONVERSATION) + 1)
    texts = render(*({"messages": CONVERSATION[:length], "tools": tools} for length in lengths))
    for shorter, longer in pairwise(texts):
        assert longer.startswith(shorter)
        assert len(longer) > len(shorter)


def test_reply_follows_the_prompt_that_asked_for_it() -> None:
    asked, answered = render(
        {"messages": CONVERSATION[:5], "tools": TOOLS, "add_generation_prompt": True},
        {"messages": CONVERSATION[:6], "tools": TOOLS},
    )
    assert answered == f"{asked}<think>Hm.</think>It prints.<|im_end|>\n"


def test_tools_calls_and_results_are_all_shown() -> None:
    (text,) = render({"messages": CONVERSATION, "tools": TOOLS})
    assert json.dumps(TOOLS[0]) in text
    assert '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>tool\n<tool_response>\nprint(1)\n</tool_response><|im_end|>" in text


def test_arguments_given_as_text_are_taken_as_they_are() -> None:
    call = {**CALL, "function": {"name": "f", "arguments": '{"a":1}'}}
    (text,) = render({"messages": [{"role": "assistant", "content": "So:", "tool_calls": [call, call]}]})
    wanted = '<tool_call>\n{"name": "f", "arguments": {"a":1}}\n</tool_call>'
    assert text == f"<|im_start|>assistant\nSo:\n{wanted}\n{wanted}<|im_end|>\n"


def test_date_is_printed_first_when_the_request_gives_one() -> None:
    without, first, second = render(*({"messages": CONVERSATION, "today": day} for day in ("", "Monday", "Tuesday")))
    assert first == f"<|im_start|>system\nToday is Monday.<|im_end|>\n{without}"
    assert second == first.replace("Monday", "Tuesday")
