#!/usr/bin/env bash
# LangChain for JavaScript leaves `tool_choice` out of a request for /v1/responses, unless it names a tool.
#
# Seen with @langchain/openai 1.5.8, @langchain/core 1.4.0 and Node 20: `bindTools(tools, { tool_choice })` with "any",
# "required" or "none" sends that value to /v1/chat/completions. With `useResponsesApi: true` the field is silently left
# out, so the model may answer without a call, or call a tool although that was forbidden. "auto" is the default in that
# API anyway, and the name of a tool is sent.
#
# The script starts a server that records the requests. It exits with 1 if the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init --yes > /dev/null
npm install --silent --no-audit --no-fund @langchain/openai@1.5.8 @langchain/core@1.4.0
cat > program.mjs <<'JAVASCRIPT'
import { createServer } from "node:http";
import { ChatOpenAI } from "@langchain/openai";

const bodies = [];
const server = createServer((request, response) => {
  let text = "";
  request.on("data", (data) => (text += data));
  request.on("end", () => {
    bodies.push(JSON.parse(text));
    response.writeHead(400, { "content-type": "application/json" });
    response.end('{"error": {"message": "recorded", "type": "invalid_request_error"}}');
  });
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const baseURL = `http://127.0.0.1:${server.address().port}/v1`;
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tool = { type: "function", function: { name: "weather", description: "The weather of a city", parameters } };

async function sent(useResponsesApi, choice) {
  const configuration = { baseURL };
  const model = new ChatOpenAI({ model: "any", apiKey: "none", maxRetries: 0, useResponsesApi, configuration });
  await model.bindTools([tool], { tool_choice: choice }).invoke("Hello").catch(() => {});
  return JSON.stringify(bodies.at(-1).tool_choice) ?? "absent";
}

const expected = {
  none: ['"none"', "absent"],
  any: ['"required"', "absent"],
  required: ['"required"', "absent"],
  weather: ['{"type":"function","function":{"name":"weather"}}', '{"type":"function","name":"weather"}'],
};
let isSo = true;
for (const [choice, [chat, responses]] of Object.entries(expected)) {
  const seen = [await sent(false, choice), await sent(true, choice)];
  console.log(`${choice}: chat completions ${seen[0]}, responses ${seen[1]}`);
  isSo &&= seen[0] === chat && seen[1] === responses;
}
server.close();
process.exit(isSo ? 0 : 1);
JAVASCRIPT
node program.mjs
