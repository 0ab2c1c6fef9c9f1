// Code that all programs of this folder share. Their usage is `program URL MODEL`. Each trial is a line of JSON on
// stdout, which `cli/tests/program/serve_client.rs` reads.

import { readFileSync } from "node:fs";

export const [url, model] = process.argv.slice(2);
export const prompt = "How is the weather in Bonn? Answer briefly.";
/** Whether the model sees. */
export const sees = process.env.AUTOPLACE_CLIENT_SEES === "1";
/** A PNG of 8 x 6 pixels as base64, and a question about it. */
export const picture =
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAGCAIAAABxZ0isAAAAY0lEQVR42g3JIQEAQQhFQZKgCbEh0Jvky5cCTYgNgSbR3dgxM9w4" +
    "xjVklPGMNcwCD05wAwUVvGDjj8STk9xESSUv2fxDuDjiCokST6z+aLw5zW3UVPOa7T8GH85wBw01vGGHD8x/PnGPuaBxAAAAAElF" +
    "TkSuQmCC";
export const pictureUrl = `data:image/png;base64,${picture}`;
export const question = "What is this?";

/** The answer to a request that no client has touched. */
async function plainly(path, body) {
    const headers = { "content-type": "application/json" };
    const request = { method: "POST", headers, body: JSON.stringify({ model, temperature: 0, max_tokens: 12, ...body }) };
    const answer = await fetch(`${url}/v1${path}`, request);
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return answer.json();
}

/** What the model says of the picture over chat completions. */
export async function seenInChat() {
    const content = [{ type: "image_url", image_url: { url: pictureUrl } }, { type: "text", text: question }];
    return (await plainly("/chat/completions", { messages: [{ role: "user", content }] })).choices[0].message.content;
}

/** What the model says of the picture over Anthropic's messages. */
export async function seenInMessages() {
    const source = { type: "base64", media_type: "image/png", data: picture };
    const content = [{ type: "image", source }, { type: "text", text: question }];
    return (await plainly("/messages", { messages: [{ role: "user", content }] })).content[0].text;
}

/** A client, by its package, on one of the server's APIs: a function that tries something and reports what goes wrong. */
export function client(name, surface) {
    const { version } = JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url)));
    return async (tried, trial) => {
        let error = null;
        try {
            await trial();
        } catch (raised) {
            console.error(raised);
            error = String(raised);
        }
        console.log(JSON.stringify({ client: name, version, surface, tried, error }));
    };
}
