// Anthropic's client for JavaScript: text, a stream, a typed answer by Zod, a forced tool and its result, a count, and
// a picture.

import assert from "node:assert";
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";
import { client, model, picture, prompt, question, seenInChat, sees, url } from "./common.mjs";

const api = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const said = [{ role: "user", content: prompt }];
const options = { model, messages: said, max_tokens: 200, system: "Be brief." };
const tools = [{
    name: "weather", description: "The weather.",
    input_schema: { type: "object", properties: { days: { type: "integer", minimum: 1 } }, required: ["days"] },
}];
const messages = client("@anthropic-ai/sdk", "messages");
await messages("text", async () => assert((await api.messages.create(options)).content[0].text));
await messages("stream", async () => {
    const stream = api.messages.stream(options);
    let text = "";
    stream.on("text", (delta) => (text += delta));
    assert.equal((await stream.finalMessage()).content[0].text, text);
});
await messages("form", async () => {
    const format = zodOutputFormat(z.object({ rain: z.boolean() }));
    const { parsed_output } = await api.messages.parse({ ...options, output_config: { format } });
    assert(typeof parsed_output.rain === "boolean");
});
const tool_choice = { type: "any", disable_parallel_tool_use: true };
let called;
await messages("call", async () => {
    called = await api.messages.create({ ...options, tools, tool_choice });
    assert(called.stop_reason === "tool_use" && called.content.at(-1).input.days >= 1);
});
await messages("streamed call", async () => {
    const message = await api.messages.stream({ ...options, tools, tool_choice }).finalMessage();
    assert(message.content.at(-1).input.days >= 1);
});
await messages("result", async () => {
    const result = { type: "tool_result", tool_use_id: called.content.at(-1).id, content: "rain" };
    const turns = [...said, { role: "assistant", content: called.content }, { role: "user", content: [result] }];
    const answer = await api.messages.create({ ...options, messages: turns, tools, tool_choice: { type: "none" } });
    assert(answer.content[0].text);
});
await messages("counts of tokens", async () => assert((await api.messages.countTokens({ model, messages: said })).input_tokens > 0));
if (sees) {
    await messages("a picture", async () => {
        const image = { type: "image", source: { type: "base64", media_type: "image/png", data: picture } };
        const content = [image, { type: "text", text: question }];
        const said = [{ role: "user", content }];
        const seen = await api.messages.create({ model, messages: said, max_tokens: 12, temperature: 0 });
        // Through another API, the answer about the same picture must be the same.
        assert.equal(seen.content[0].text, await seenInChat());
    });
}
