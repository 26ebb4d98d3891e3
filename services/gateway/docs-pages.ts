import { createHash } from "node:crypto";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { describeApi } from "../../shared/contract/openapi/document.ts";

/** A page or file of the documentation, which needs no key. */
export interface DocsPage {
  path: string;
  /** Answers GET and HEAD. */
  answer(request: Request): Promise<Response>;
}

/** The OpenAPI document, and a page on which it can be read and tried. Each is made or read when it is first requested. */
export function createDocsPages(publicUrl: string | null): DocsPage[] {
  return [
    pageOf("/openapi.json", "application/json", async () => describeApi(publicUrl)),
    pageOf("/docs", "text/html; charset=utf-8", async () => HTML),
    pageOf("/docs/start.js", "text/javascript; charset=utf-8", async () => START),
    fileOf("swagger-ui-bundle.js", "text/javascript; charset=utf-8"),
    fileOf("swagger-ui.css", "text/css; charset=utf-8"),
    fileOf("favicon-32x32.png", "image/png"),
  ];
}

/** The references are relative, so that the page works under any path prefix of a proxy. */
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

/** With a `validatorUrl` the page would send the document's address to a validator on the internet. */
const START = `SwaggerUIBundle({ url: "openapi.json", dom_id: "#docs", deepLinking: true, validatorUrl: null });
`;

/** The headers keep the page's script from requests to any other origin. */
const HEADERS = {
  "Content-Security-Policy":
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; " +
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  "Referrer-Policy": "no-referrer",
  "X-Content-Type-Options": "nosniff",
  // Browsers ask every time whether their copy is still current.
  "Cache-Control": "no-cache",
};

interface Content {
  /** A file is sent from disk, so that slow clients hold no megabytes in memory. */
  body: string | Blob;
  tag: string;
}

function pageOf(path: string, type: string, make: () => Promise<string | Blob>): DocsPage {
  let content: Promise<Content> | undefined;
  return {
    path,
    async answer(request) {
      content ??= make()
        .then(tagged)
        .catch((error) => {
          // A file that could not be read now may be readable next time.
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

function fileOf(name: string, type: string): DocsPage {
  return pageOf(`/docs/${name}`, type, async () => {
    const folder = dirname(fileURLToPath(import.meta.resolve("swagger-ui-dist/package.json")));
    return Bun.file(join(folder, name));
  });
}

async function tagged(body: string | Blob): Promise<Content> {
  const bytes = typeof body === "string" ? body : await body.bytes();
  return { body, tag: `"${createHash("sha256").update(bytes).digest("base64url")}"` };
}

/** RFC 9110, section 13.1.2: weak comparison with each tag of the list; `*` is any. */
function isKnown(header: string | null, tag: string): boolean {
  const known = (header ?? "").split(",").map((text) => text.trim().replace(/^W\//, ""));
  return known.includes(tag) || known.includes("*");
}
