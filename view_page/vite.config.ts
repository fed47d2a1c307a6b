import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync } from "node:fs";
import { dirname, join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig, type Plugin, type Rollup } from "vite";

const here = dirname(fileURLToPath(import.meta.url));
const page = join(here, "..", "msprobe_core", "view", "page");

/** The words of findings, which Python has too. */
const WORDINGS = ["en", "zh"].map((language) => `../msprobe_core/wording/${language}.json`);

/** What the bundle is made of; tests/unit/test_view_bundle.py computes the same hash. */
function sources(): string[] {
  const found: string[] = [];
  const walk = (folder: string): void => {
    for (const name of readdirSync(folder)) {
      if (name === "node_modules" || name === "dist" || name.startsWith(".")) continue;
      const path = join(folder, name);
      if (statSync(path).isDirectory()) walk(path);
      else found.push(relative(here, path).split(sep).join("/"));
    }
  };
  walk(here);
  return [...found, ...WORDINGS].sort();
}

function sourceHash(): string {
  const hash = createHash("sha256");
  for (const name of sources()) {
    const content = readFileSync(join(here, name));
    hash.update(`${name}\n${content.length}\n`).update(content);
  }
  return hash.digest("hex");
}

function cspHash(text: string): string {
  return `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
}

/** One HTML file without any reference to another; only the script and the style sheet with these hashes may run. */
function onePage(): Plugin {
  return {
    name: "one-page",
    enforce: "post",
    generateBundle(_options, bundle) {
      let code = "";
      let style = "";
      for (const item of Object.values(bundle)) {
        if (item.type === "chunk") code += item.code;
        else if (item.fileName.endsWith(".css")) style += (item as Rollup.OutputAsset).source;
      }
      for (const name of Object.keys(bundle)) delete bundle[name];
      code = `\n${code.replace(/<\/script/gi, "<\\/script").replace(/<!--/g, "<\\!--").trim()}\n`;
      style = `\n${style.trim()}\n`;
      const policy = [
        "default-src 'none'",
        `script-src ${cspHash(code)}`,
        `style-src ${cspHash(style)}`,
        "img-src data: blob:",
        "connect-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
      ].join("; ");
      const html = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        `<meta http-equiv="Content-Security-Policy" content="${policy}">`,
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        '<meta name="color-scheme" content="light dark">',
        `<meta name="msprobe-page-source" content="${sourceHash()}">`,
        "<title>msprobe</title>",
        `<style>${style}</style>`,
        "</head>",
        "<body>",
        '<div id="root"></div>',
        "<!--msprobe-data-->",
        `<script>${code}</script>`,
        "</body>",
        "</html>",
        "",
      ].join("\n");
      this.emitFile({ type: "asset", fileName: "index.html", source: html });
      this.emitFile({ type: "asset", fileName: "LICENSES.txt", source: licences() });
    },
  };
}

/** Names, versions and licence texts of all that the bundle holds (what "dependencies" pull in). */
function licences(): string {
  const lock = JSON.parse(readFileSync(join(here, "package-lock.json"), "utf8")) as {
    packages: Record<string, { dev?: boolean; version: string }>;
  };
  const parts = ["The page holds parts of these packages from npm, each with its licence.\n"];
  for (const [path, entry] of Object.entries(lock.packages)) {
    const name = path.replace(/^.*node_modules\//, "");
    if (!path || entry.dev || name.startsWith("@types/") || name === "csstype") continue;
    const folder = join(here, path);
    if (!existsSync(folder)) continue; // optional peers that are not installed
    const info = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as { license?: string };
    const file = readdirSync(folder).find((item) => /^licen[cs]e/i.test(item));
    const text = file ? readFileSync(join(folder, file), "utf8").replace(/\r\n/g, "\n").trim() : "";
    parts.push(`${"=".repeat(80)}\n${name} ${entry.version} (${info.license ?? "see below"})\n\n${text}\n`);
  }
  return parts.join("\n");
}

mkdirSync(page, { recursive: true });

export default defineConfig({
  root: here,
  logLevel: "warn",
  esbuild: { jsx: "automatic", legalComments: "none" },
  build: {
    outDir: process.env.MSPROBE_PAGE_OUT ?? page,
    emptyOutDir: false,
    target: "es2023",
    cssCodeSplit: false,
    modulePreload: false,
    assetsInlineLimit: 1 << 20,
    reportCompressedSize: false,
    rollupOptions: {
      onwarn: (warning, tell) => { if (warning.code !== "MODULE_LEVEL_DIRECTIVE") tell(warning); },
      output: { format: "iife", inlineDynamicImports: true },
    },
  },
  plugins: [onePage()],
});
