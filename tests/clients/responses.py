"""The vendor's own client talks to the agent: a message, another one, a stream, a question, and what is refused."""

import sys

from openai import BadRequestError, NotFoundError, OpenAI

base_url, token = sys.argv[1:]
client = OpenAI(base_url=base_url + "/v1", api_key=token)
ann = {"tenant_id": "ann"}

# a message, and others that go on with it, by the response and by the conversation
first = client.responses.create(model="reveille", input="hello", extra_body=ann)
assert first.status == "completed" and first.output_text == "1: hello", first
assert first.usage.total_tokens == 12 and first.usage.input_tokens == 10, first.usage
second = client.responses.create(model="reveille", input="and you?", previous_response_id=first.id)
assert second.output_text == "3: and you?", second
assert second.conversation.id == first.conversation.id
text = [{"role": "user", "content": [{"type": "input_text", "text": "a list"}]}]
third = client.responses.create(input=text, conversation=first.conversation.id)
assert third.output_text == "5: a list", third
again = client.responses.retrieve(third.id)
assert again.output_text == third.output_text and again.status == "completed", again

# in pieces, and put together by the client
with client.responses.stream(model="reveille", input="in pieces", extra_body=ann) as stream:
    events = list(stream)
    whole = stream.get_final_response()
again = client.responses.retrieve(whole.id)
assert [(one.id, one.content[0].text) for one in again.output] == [(whole.output[0].id, "1: in pieces")], again
kinds = [event.type for event in events]
assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed", kinds
assert [event.sequence_number for event in events] == list(range(len(events)))
told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
assert told == whole.output_text == "1: in pieces", (told, whole)

# the same message is one run, as often as it is sent
key = {"Idempotency-Key": "once"}
sent = [client.responses.create(input="once", extra_body=ann, extra_headers=key).id for _ in range(2)]
assert sent[0] == sent[1], sent

# a question to the person, which the next message answers
asked = client.responses.create(model="reveille", input="hold one", conversation={"id": first.conversation.id})
assert asked.status == "incomplete" and asked.incomplete_details.reason == "approval_required", asked
assert "hold" in asked.output_text, asked
decided = client.responses.create(model="reveille", input="yes", conversation=first.conversation.id)
assert decided.status == "completed" and decided.id == asked.id and decided.output_text.startswith("told: "), decided
events = list(client.responses.create(model="reveille", input="hold one", extra_body=ann, stream=True))
assert events[-1].type == "response.incomplete", events[-1]
assert "hold" in events[-1].response.output_text, events[-1]

choice = client.responses.create(model="reveille", input="ask me", extra_body=ann)
assert choice.incomplete_details.reason == "input_required" and "window, aisle" in choice.output_text, choice
chosen = client.responses.create(model="reveille", input="aisle", previous_response_id=choice.id)
assert chosen.status == "completed" and "aisle" in chosen.output_text, chosen

# what can't be undone is not decided by a message, and asked back
pay = client.responses.create(model="reveille", input="pay the bill", extra_body=ann)
assert pay.status == "incomplete", pay
for stream in (False, True):
    back = client.responses.create(model="reveille", input="yes", conversation=pay.conversation.id, stream=stream)
    back = list(back)[-1].response if stream else back
    assert back.id == pay.id and back.status == "incomplete" and "impossible to undo" in back.output_text, back

# an agent that is stopped at its limit of turns: its answer is as far as it came
stopped = client.responses.create(model="reveille", input="look for ever", extra_body=ann)
assert stopped.status == "incomplete" and stopped.incomplete_details.reason == "max_turns", stopped
assert stopped.output_text == "As far as I came.", stopped
again = client.responses.retrieve(stopped.id)
assert (again.status, again.incomplete_details.reason) == ("incomplete", "max_turns"), again
events = list(client.responses.create(model="reveille", input="look for ever", extra_body=ann, stream=True))
assert events[0].response.incomplete_details is None, events[0]
assert events[-1].type == "response.incomplete", events[-1]
assert events[-1].response.output_text == "As far as I came.", events[-1]

# at once, and read again
early = client.responses.create(model="reveille", input="later", background=True, extra_body=ann)
while early.status in ("queued", "in_progress"):
    early = client.responses.retrieve(early.id)
again = client.responses.retrieve(early.id)
assert again.output_text == "1: later" and again.background is True, again
assert client.responses.retrieve(second.id).previous_response_id == first.id


def refused(kind, **parameters):
    try:
        client.responses.create(**parameters)
    except kind as error:
        assert error.response.headers["x-should-retry"] == "false", error.response.headers
        return f"{error} (at {error.param!r}, {error.type}, {error.code})"
    raise AssertionError(f"not refused: {parameters}")


said = refused(BadRequestError, model="gpt-7", input="hello", temperature=0.5, tools=[{"type": "web_search"}], store=False)
for name in ("`model`", "`temperature`", "`tools`", "`store`"):
    assert name in said, said
said = refused(BadRequestError, input=[{"role": "assistant", "content": "I said"}], extra_body=ann)
assert "`input[0].role`" in said and "at 'input[0].role', invalid_request_error" in said, said
said = refused(BadRequestError, input=[{"type": "function_call_output", "call_id": "c", "output": "x"}], extra_body=ann)
assert "`input[0].type`" in said, said
assert "both" in refused(BadRequestError, input="x", conversation="c", previous_response_id="resp_x")
assert "response" in refused(NotFoundError, input="x", previous_response_id="resp_nothing")
print("all of it")
