// What all programs of this folder share: `program URL MODEL`. Each trial becomes a line of JSON on stdout, which
// `cli/tests/program/serve_client.rs` reads.

import { readFileSync } from "node:fs";

export const [url, model] = process.argv.slice(2);
export const prompt = "How is the weather in Bonn? Answer briefly.";

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
