import { render } from "preact";
import { useEffect } from "preact/hooks";
import type { Environment } from "../../../shared/domain/scope.ts";
import { watchOutage } from "./data/outage.ts";
import { addressOf, goTo, hrefOf, pageKey, place } from "./data/place.ts";
import { hasKey, lastEnvironment, may, reopen, type Session, sessionState } from "./data/session.ts";
import { Frame } from "./frame/frame.tsx";
import { SignInPage } from "./frame/sign-in.tsx";
import { PAGES } from "./pages/all.ts";
import { Empty, Loading, PageHead, ScopeNote, Trouble } from "./ui/page.tsx";
import { Link } from "./ui/small.tsx";

const REOPEN_MS = 4_000;

function Console() {
  const { environment } = place.value;
  const state = sessionState.value;
  const last = environment === null ? lastEnvironment() : null;
  const isKept = environment !== null && hasKey(environment);
  useEffect(() => {
    if (last !== null) goTo(addressOf(last, "overview"), { replace: true });
    else if (environment !== null && isKept && state.kind === "closed") void reopen(environment);
  }, [last, environment, isKept, state.kind]);

  if (state.kind === "open") {
    const { session } = state;
    // The `key` keeps a view of one thing from showing data that another view has loaded.
    return (
      <Frame session={session}>
        <Page session={session} key={`${session.project.id} ${pageKey.value}`} />
      </Frame>
    );
  }
  if (state.kind === "failed" && environment !== null)
    return <Unopened environment={environment} error={state.error} />;
  if (last !== null || isKept) return <Opening />;
  return <SignInPage environment={environment} />;
}

function Page({ session }: { session: Session }) {
  const { page, rest } = place.value;
  const found = PAGES.find(({ name }) => name === page);
  const jobs = (
    <Link class="button" href={hrefOf("jobs")}>
      Jobs
    </Link>
  );
  if (found === undefined) {
    return (
      <>
        <PageHead title="Not found" />
        <Empty title="There is no such page" action={jobs}>
          The address may be mistyped.
        </Empty>
      </>
    );
  }
  if (!may(session, found.resource, "read")) {
    return (
      <>
        <PageHead title={found.title} />
        <Empty title="Not with this key" action={jobs}>
          <ScopeNote session={session} what="read this" />
        </Empty>
      </>
    );
  }
  return <found.view rest={rest} />;
}

function Opening() {
  return (
    <main class="door">
      <div class="door-card">
        <Loading what="the project" />
      </div>
    </main>
  );
}

/** The project could not be asked for, as during an outage. It is asked for again until there is an answer. */
function Unopened({ environment, error }: { environment: Environment; error: unknown }) {
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden) void reopen(environment);
    }, REOPEN_MS);
    return () => clearInterval(timer);
  }, [environment]);
  return (
    <main class="door">
      <div class="door-card">
        <h1>The project cannot be loaded</h1>
        <Trouble error={error} onRetry={() => void reopen(environment)} />
      </div>
    </main>
  );
}

watchOutage();
const root = document.getElementById("app");
if (root !== null) render(<Console />, root);
