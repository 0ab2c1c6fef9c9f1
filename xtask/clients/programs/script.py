"""A scripted model for coding agents: a proxy before the server that says what each turn calls or answers. It forces
the call or the words by the server's own means (`tool_choice`, a schema, a grammar); all else is as the agent sent it."""

import contextlib
import http.client
import http.server
import json
import threading
import urllib.parse


def literal(value):
    """A schema, or a grammar, of this value alone."""
    if isinstance(value, str):
        return f"root ::= {json.dumps(value)}"
    properties = {name: {"const": it} for name, it in value.items()}
    return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}


def results(request):
    """How many calls of the conversation have their results."""
    items = list(request.get("input") or [])
    for message in request.get("messages") or []:
        content = message.get("content")
        items += content if isinstance(content, list) else []
    return sum(item.get("type") in ("function_call_output", "tool_result") for item in items)


def direct(request, turns):
    """Holds the request to the last of these turns. A turn is a text, or a tool's name and its arguments."""
    is_anthropic = "system" in request
    for turn in turns:
        # The tools of earlier turns stay as they were, because a changed prompt would be computed again.
        if isinstance(turn, str):
            continue
        name, arguments = turn
        tool = next(tool for tool in request["tools"] if tool.get("name") == name)
        tool.update({"strict": True, "input_schema" if is_anthropic else "parameters": literal(arguments)})
    if isinstance(turns[-1], str):
        request["grammar"] = literal(turns[-1])
        if request.get("tools"):
            request["tool_choice"] = {"type": "none"} if is_anthropic else "none"
        return
    name, _ = turns[-1]
    if is_anthropic:
        request["tool_choice"] = {"type": "tool", "name": name, "disable_parallel_tool_use": True}
    else:
        request.update(tool_choice={"type": "function", "name": name}, parallel_tool_calls=False)


@contextlib.contextmanager
def scripted(server, turns):
    """The address of the proxy, and a list that holds the status of each answer."""
    host = urllib.parse.urlsplit(server).netloc
    answered = []

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.forward(None)

        def do_HEAD(self):
            self.forward(None)

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            # Requests that do not belong to the task, such as a request for a title, have no tools.
            is_task = "tools" in request or all(isinstance(turn, str) for turn in turns)
            turn = results(request)
            if is_task and "count_tokens" not in self.path and turn < len(turns):
                direct(request, turns[: turn + 1])
            self.forward(json.dumps(request).encode())

        def forward(self, body):
            connection = http.client.HTTPConnection(host)
            headers = {name: value for name, value in self.headers.items() if name.lower().startswith(("auth", "x-", "anthropic"))}
            connection.request(self.command, self.path, body, {**headers, "content-type": "application/json"})
            answer = connection.getresponse()
            answered.append(answer.status)
            self.send_response(answer.status)
            self.send_header("content-type", answer.getheader("content-type") or "text/plain")
            self.end_headers()
            while piece := answer.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()

        def log_message(self, *_):
            pass

    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{proxy.server_port}", answered
    finally:
        proxy.shutdown()
