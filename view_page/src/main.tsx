import "@xyflow/react/dist/base.css";
import "./style.css";
import { createRoot } from "react-dom/client";
import { App } from "./app";
import { DataError, load } from "./data";
import { firstLanguage, firstTheme, start } from "./store";
import { text } from "./texts";

declare global {
  interface Window {
    /** When the page stood, in milliseconds since it began to load; bench/view_page.py asks for it. */
    msprobeReady?: number;
  }
}

async function begin(): Promise<void> {
  const host = document.getElementById("root");
  if (!host) return;
  document.documentElement.dataset.theme = firstTheme();
  const tell = (words: string): void => {
    host.textContent = words;
    host.className = "empty";
  };
  try {
    const { data, source } = await load();
    start(data, source);
    host.className = "";
    createRoot(host).render(<App />);
    requestAnimationFrame(() => requestAnimationFrame(() => { window.msprobeReady = performance.now(); }));
  } catch (error) {
    const said = error instanceof DataError && error.message === "";
    tell(said ? text(firstLanguage(), "noData") : text(firstLanguage(), "failed", String(error)));
  }
}

void begin();
