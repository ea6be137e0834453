"""Asks a model by its provider's own client, and prints what that reads: text, calls, why it ended, tokens."""

import json
import sys

import anthropic
import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

TOOL = {"type": "object", "properties": {}}
USER = [{"role": "user", "content": "Go."}]


def chat(url: str, stream: bool) -> dict:
    client = openai.OpenAI(base_url=url, api_key="sk", max_retries=0)
    tools = [{"type": "function", "function": {"name": "echo", "parameters": TOOL}}]
    if stream:
        # the usual helper raises for answers that are cut or withheld
        state = ChatCompletionStreamState()
        options = {"include_usage": True}
        for chunk in client.chat.completions.create(
            model="model-7", messages=USER, tools=tools, stream=True, stream_options=options
        ):
            state.handle_chunk(chunk)
        answer = state.current_completion_snapshot
    else:
        answer = client.chat.completions.create(model="model-7", messages=USER, tools=tools)
    choice = answer.choices[0]
    calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    tokens = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
    return {"text": choice.message.content, "calls": calls, "end": choice.finish_reason, "tokens": tokens}


def responses(url: str, stream: bool) -> dict:
    client = openai.OpenAI(base_url=url, api_key="sk", max_retries=0)
    tools = [{"type": "function", "name": "echo", "parameters": TOOL, "strict": False}]
    if stream:
        events = client.responses.create(model="model-7", input="Go.", tools=tools, stream=True)
        ends = ("response.completed", "response.incomplete")
        answer = next(event.response for event in events if event.type in ends)
    else:
        answer = client.responses.create(model="model-7", input="Go.", tools=tools)
    calls = [(item.call_id, item.name, item.arguments) for item in answer.output if item.type == "function_call"]
    tokens = (answer.usage.input_tokens, answer.usage.output_tokens)
    end = answer.incomplete_details.reason if answer.incomplete_details else answer.status
    return {"text": answer.output_text or None, "calls": calls, "end": end, "tokens": tokens}


def messages(url: str, stream: bool) -> dict:
    # this client adds the version to the address
    client = anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key="sk", max_retries=0)
    tools = [{"name": "echo", "input_schema": TOOL}]
    question = {"model": "model-7", "max_tokens": 100, "messages": USER, "tools": tools}
    if stream:
        with client.messages.stream(**question) as events:
            answer = events.get_final_message()
    else:
        answer = client.messages.create(**question)
    text = "".join(block.text for block in answer.content if block.type == "text")
    calls = [(block.id, block.name, json.dumps(block.input)) for block in answer.content if block.type == "tool_use"]
    usage = answer.usage
    tokens = (usage.input_tokens + usage.cache_read_input_tokens, usage.output_tokens)
    return {"text": text or None, "calls": calls, "end": answer.stop_reason, "tokens": tokens}


WIRES = {"openai": chat, "openai-responses": responses, "anthropic": messages}


def main() -> None:
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(WIRES[question["wire"]](question["url"], question["stream"])), flush=True)


main()
