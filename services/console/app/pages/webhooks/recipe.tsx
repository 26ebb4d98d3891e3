import { Card } from "../../ui/page.tsx";
import { Block, Copy } from "../../ui/small.tsx";

/** How a receiver verifies what it gets. */
export function Recipe() {
  return (
    <Card title="Verify what arrives" head={<Copy text={RECIPE} what="the recipe" />}>
      <p class="note">
        Anybody can send requests to a URL. Yours are signed as <code>webhook-signature</code> of Standard
        Webhooks, whose libraries verify them too. Keep the secret in <code>JOBWHEEL_SECRET</code>.
      </p>
      <Block what="the recipe to verify">{RECIPE}</Block>
    </Card>
  );
}

const RECIPE = `import { receive } from "@jobwheel/client/receive";

// Serve it with Bun.serve({ fetch: receiver }), as POST of a route of Next.js, or with toNode(receiver) in Node.
export const receiver = receive({
  secrets: process.env.JOBWHEEL_SECRET,
  onEvent({ event }) {
    console.log(event.id, event.type);
  },
});`;
