import { createHash } from "node:crypto";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { describeApi } from "../../shared/contract/openapi/document.ts";

/** Something to read beside the API: for everybody, without a key. */
export interface Page {
  path: string;
  /** For GET and HEAD. */
  answer(request: Request): Promise<Response>;
}

/** The OpenAPI document, and a page on which it can be read and tried. Everything is made or read when it is first asked for. */
export function createDocs(publicUrl: string | null): Page[] {
  return [
    pageOf("/openapi.json", "application/json", async () => describeApi(publicUrl)),
    pageOf("/docs", "text/html; charset=utf-8", async () => HTML),
    pageOf("/docs/start.js", "text/javascript; charset=utf-8", async () => START),
    fileOf("swagger-ui-bundle.js", "text/javascript; charset=utf-8"),
    fileOf("swagger-ui.css", "text/css; charset=utf-8"),
    fileOf("favicon-32x32.png", "image/png"),
  ];
}

/** The references are relative, so that the page works under any path that a proxy puts before it. */
const HTML = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Jobwheel API</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<noscript>This page needs JavaScript; the document that it shows is <a href="openapi.json">openapi.json</a>.</noscript>
<div id="docs"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
`;

/** Without the null the page would send the document's address to a validator on the internet. */
const START = `SwaggerUIBundle({ url: "openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null });
`;

/** No other origin is asked for anything, whatever the page's script would like to do. */
const HEADERS = {
  "Content-Security-Policy":
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; " +
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  "Referrer-Policy": "no-referrer",
  "X-Content-Type-Options": "nosniff",
  // An old copy is never shown, and a good one never sent again.
  "Cache-Control": "no-cache",
};

interface Content {
  /** A file is sent from where it lies: nobody who reads slowly holds its megabytes in memory. */
  body: string | Blob;
  tag: string;
}

function pageOf(path: string, type: string, make: () => Promise<string | Blob>): Page {
  let content: Promise<Content> | undefined;
  return {
    path,
    async answer(request) {
      content ??= make()
        .then(tagged)
        .catch((error) => {
          // What could not be read now may be readable next time.
          content = undefined;
          throw error;
        });
      const { body, tag } = await content;
      const headers = { ...HEADERS, "Content-Type": type, ETag: tag };
      return isKnown(request.headers.get("if-none-match"), tag)
        ? new Response(null, { status: 304, headers })
        : new Response(body, { headers });
    },
  };
}

function fileOf(name: string, type: string): Page {
  return pageOf(`/docs/${name}`, type, async () => {
    const folder = dirname(fileURLToPath(import.meta.resolve("swagger-ui-dist/package.json")));
    return Bun.file(join(folder, name));
  });
}

async function tagged(body: string | Blob): Promise<Content> {
  const bytes = typeof body === "string" ? body : await body.bytes();
  return { body, tag: `"${createHash("sha256").update(bytes).digest("base64url")}"` };
}

/** RFC 9110, section 13.1.2: the weak comparison with one of a list, or with anything. */
function isKnown(header: string | null, tag: string): boolean {
  const known = (header ?? "").split(",").map((text) => text.trim().replace(/^W\//, ""));
  return known.includes(tag) || known.includes("*");
}
