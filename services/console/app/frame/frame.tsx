import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { ENVIRONMENTS } from "../../../../shared/domain/scope.ts";
import { outage, rateLimit } from "../data/answers.ts";
import { addressOf, BASE, goTo, hrefOf, pageKey, place } from "../data/place.ts";
import { THEMES, type Theme, TIME_STYLES, type TimeStyle, theme, timeStyle } from "../data/preferences.ts";
import { may, refused, type Session, signOut } from "../data/session.ts";
import { PAGES } from "../pages/all.ts";
import { Dialog, Toasts } from "../ui/dialog.tsx";
import { MenuIcon, PageIcon, Wheel } from "../ui/icons.tsx";
import { Link } from "../ui/small.tsx";
import { countText } from "../ui/time.ts";
import { isHelpOpen, KeysHelp, useKeys } from "./keys.tsx";
import { SignInForm } from "./sign-in.tsx";

/** The frame of every page: project, environment and menu, and notes on an outage or a refused key. */

const isMenuOpen = signal(false);

export function Frame({ session, children }: { session: Session; children: ComponentChildren }) {
  const main = useRef<HTMLElement>(null);
  const key = pageKey.value;
  const shownKey = useRef(key);
  useKeys();
  useEffect(() => {
    // A visitor who goes on by the keyboard begins at the new page, not in the menu.
    if (shownKey.current !== key) main.current?.focus({ preventScroll: true });
    shownKey.current = key;
    isMenuOpen.value = false;
  }, [key]);
  const { environment } = session;
  return (
    <div class="frame" data-environment={environment}>
      <a class="skip" href="#content">
        Skip to the content
      </a>
      <div class="bar">
        <button
          type="button"
          class="button icon-only"
          aria-label="Menu"
          aria-expanded={isMenuOpen.value}
          onClick={() => {
            isMenuOpen.value = true;
          }}
        >
          <MenuIcon />
        </button>
        <span class="project-name">{session.project.name}</span>
        <span class="environment-chip">{environment}</span>
      </div>
      {isMenuOpen.value && (
        <button
          type="button"
          class="veil"
          aria-label="Close the menu"
          onClick={() => {
            isMenuOpen.value = false;
          }}
        />
      )}
      <Side session={session} />
      <main class="content" id="content" tabIndex={-1} ref={main}>
        <OutageBanner />
        {children}
      </main>
      {refused.value === environment && <RefusedKey session={session} />}
      <KeysHelp />
      <Toasts />
    </div>
  );
}

function Side({ session }: { session: Session }) {
  const { environment, project, scope } = session;
  const { page } = place.value;
  return (
    <header class={isMenuOpen.value ? "side is-open" : "side"}>
      <Link href={hrefOf("overview")} class="brand">
        <Wheel />
        Jobwheel
      </Link>
      <div class="project">
        <div class="project-name" title={project.name}>
          {project.name}
        </div>
        <nav class="environments" aria-label="Environments">
          {ENVIRONMENTS.map((name) => (
            <Link key={name} href={addressOf(name, page ?? "overview")} isCurrent={name === environment}>
              {name}
            </Link>
          ))}
        </nav>
      </div>
      <nav class="menu" aria-label="Pages">
        {PAGES.filter(({ resource }) => may(session, resource, "read")).map((one) => (
          <Link key={one.name} href={hrefOf(one.name)} isCurrent={page === one.name}>
            <PageIcon page={one.name} />
            {one.title}
          </Link>
        ))}
      </nav>
      <div class="side-foot">
        <RequestsLeft />
        <div class="row">
          <label for="times">Times</label>
          <select
            id="times"
            value={timeStyle.value}
            onChange={(event) => {
              timeStyle.value = event.currentTarget.value as TimeStyle;
            }}
          >
            {TIME_STYLES.map((style) => (
              <option key={style} value={style}>
                {style === "utc" ? "UTC" : style}
              </option>
            ))}
          </select>
        </div>
        <div class="row">
          <label for="theme">Colours</label>
          <select
            id="theme"
            value={theme.value}
            onChange={(event) => {
              theme.value = event.currentTarget.value as Theme;
            }}
          >
            {THEMES.map((name) => (
              <option key={name} value={name}>
                {name}
              </option>
            ))}
          </select>
        </div>
        <div class="row">
          <span>{`Key: ${scope}`}</span>
          <button
            type="button"
            class="plain-button"
            onClick={() => {
              signOut(environment);
              goTo(BASE);
            }}
          >
            Sign out
          </button>
        </div>
        <div class="row">
          <a href={`${BASE}docs`}>API docs</a>
          <button
            type="button"
            class="plain-button"
            onClick={() => {
              isHelpOpen.value = true;
            }}
          >
            Keys (?)
          </button>
        </div>
      </div>
    </header>
  );
}

function RequestsLeft() {
  const rate = rateLimit.value;
  if (rate === null) return null;
  return (
    <div class="row number" title={`Requests left in this minute. All are back in ${rate.resetSeconds} s.`}>
      <span>Requests left</span>
      <span>{`${countText(rate.remaining)} of ${countText(rate.limit)}`}</span>
    </div>
  );
}

function OutageBanner() {
  if (outage.value === null) return null;
  return (
    <div class="banner bad" role="alert">
      <strong>
        {outage.value === "store" ? "The service cannot reach its database." : "The gateway does not answer."}
      </strong>
      <span>What you see may be old. This goes away by itself as soon as the service is back.</span>
    </div>
  );
}

/** The key was accepted before and is no longer. Texts that were typed in the page stay. */
function RefusedKey({ session }: { session: Session }) {
  return (
    <Dialog title="Your key is no longer accepted">
      <p>
        It has expired or was revoked. Paste another key of <strong>{session.project.name}</strong>,{" "}
        <span class="environment-chip">{session.environment}</span>, to go on where you are.
      </p>
      <SignInForm environment={session.environment} />
    </Dialog>
  );
}
