import { ASSETS_PATH, isView } from "./app/paths.ts";
import { type Asset, type Bundle, ENTRIES, type Entry, findEntry } from "./build/bundle.ts";
import { openBundle } from "./build/kept.ts";

/** The part of the console that a gateway serves. It asks for no key, because it holds no customer's data. */
export interface ConsolePages {
  /**
   * The answer to GET and HEAD of a path, as it was sent; null where the console has nothing. Views and the page for
   * unknown paths are for browsers alone.
   */
  answer(request: Request, path: string): Promise<Response | null>;
}

/** A client without a key may ask, and a build takes a second of the gateway. */
const BUILT_AGAIN_MS = 10_000;

/**
 * The build is opened, or made, at the first request. After a failure the next request `againMs` later tries again. One build is
 * made at a time.
 */
export function createConsolePages(
  build: () => Promise<Bundle> = openBundle,
  againMs = BUILT_AGAIN_MS,
): ConsolePages {
  let opened: Promise<Served> | undefined;
  const open = () =>
    (opened ??= build().then(
      ({ assets }) => serve(assets),
      (error: unknown) => {
        setTimeout(() => {
          opened = undefined;
        }, againMs).unref();
        throw error;
      },
    ));

  return {
    async answer(request, path) {
      if (path.startsWith(`${ASSETS_PATH}/`)) {
        const file = (await open()).files.get(path.slice(ASSETS_PATH.length + 1));
        if (file !== undefined) return file(request);
      }
      if (path === "/favicon.ico") return (await open()).icon(request);
      if (!isForBrowser(request) || path.split("/").length > STEPS_MAX) return null;
      if (path === "/docs/")
        return new Response(null, { status: 302, headers: { Location: "../docs", Vary: "Accept" } });
      if (!isView(path)) return page(path, 404, UNKNOWN_PAGE);
      return page(path, 200, (await open()).shell);
    },
  };
}

interface Served {
  /** By their names. */
  files: Map<string, (request: Request) => Response>;
  icon(request: Request): Response;
  /** The page of every view, with `{base}` for the way from the view to the gateway's door. */
  shell: string;
}

function serve(assets: readonly Asset[]): Served {
  const [script, style, theme, icon] = ENTRIES.map((entry: Entry) => findEntry(assets, entry));
  const hrefOf = (asset: Asset | undefined) => `{base}${ASSETS_PATH.slice(1)}/${asset?.name}`;
  return {
    files: new Map(assets.map((asset) => [asset.name, answerAsset(asset, KEPT_FOREVER)])),
    icon: answerAsset(findEntry(assets, "favicon.svg"), KEPT_FOR_A_DAY),
    shell: `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Jobwheel</title>
<link rel="icon" type="image/svg+xml" href="${hrefOf(icon)}">
<link rel="stylesheet" href="${hrefOf(style)}">
<script src="${hrefOf(theme)}"></script>
<script type="module" src="${hrefOf(script)}"></script>
</head>
<body>
<noscript>The console needs JavaScript. The <a href="{base}docs">documentation</a> says how the API is called without it.</noscript>
<div id="app"></div>
</body>
</html>
`,
  };
}

const UNKNOWN_PAGE = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Not found · Jobwheel</title>
</head>
<body>
<h1>There is nothing here</h1>
<p>Jobwheel has no page at this address. There are <a href="{base}./">the console</a> and <a href="{base}docs">the documentation</a> of the API.</p>
</body>
</html>
`;

/** Far more steps than any view has. Pages hold the way back to the door several times, and must not outgrow the request. */
const STEPS_MAX = 32;

/** References are relative, so that the pages work under any path prefix of a proxy. */
function page(path: string, status: number, template: string): Response {
  const base = "../".repeat(path.split("/").length - 2);
  return new Response(template.replaceAll("{base}", base), {
    status,
    headers: {
      ...HEADERS,
      "Content-Type": "text/html; charset=utf-8",
      "Content-Security-Policy": POLICY,
      "Cache-Control": "no-cache",
      Vary: "Accept",
    },
  });
}

/** No script or style but the console's own files, no request but to its own gateway, and no frame around it. */
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
  "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS = {
  "Referrer-Policy": "no-referrer",
  "X-Content-Type-Options": "nosniff",
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Resource-Policy": "same-origin",
};
const KEPT_FOREVER = "public, max-age=31536000, immutable";
const KEPT_FOR_A_DAY = "public, max-age=86400";

/** Each encoding is one blob, which all answers share: a client that reads slowly holds no copy of it. */
function answerAsset({ type, bytes, gzip, brotli }: Asset, caching: string): (request: Request) => Response {
  const blobs = { br: new Blob([brotli]), gzip: new Blob([gzip]), identity: new Blob([bytes]) };
  return (request) => {
    const encoding = encodingFor(request.headers.get("accept-encoding") ?? "");
    return new Response(blobs[encoding], {
      headers: {
        ...HEADERS,
        "Content-Type": type,
        "Cache-Control": caching,
        Vary: "Accept-Encoding",
        ...(encoding === "identity" ? {} : { "Content-Encoding": encoding }),
      },
    });
  };
}

function encodingFor(accepted: string): "br" | "gzip" | "identity" {
  const takes = (name: string) =>
    new RegExp(`(?:^|,)\\s*${name}\\s*(?:,|$|;\\s*q=(?!0(?:\\.0*)?\\s*(?:,|$)))`).test(accepted);
  return takes("br") ? "br" : takes("gzip") ? "gzip" : "identity";
}

/** Programs accept anything, or JSON. Only browsers name HTML. */
function isForBrowser(request: Request): boolean {
  return /(?:^|,)\s*text\/html\s*(?:[,;]|$)/.test(request.headers.get("accept") ?? "");
}
