import { type Certificate, makeAuthority } from "../runtime-contract/certificates.ts";
import { answerOf, type RawServer, startRawServer } from "../runtime-contract/raw-server.ts";

export type CertifiedTarget = Omit<RawServer, "stop">;

/** Hosts over TLS, asked under a name for which only one of them has a certificate. */
export interface CertifiedTargets {
  good: CertifiedTarget;
  /** To these nothing may be sent: another name's certificate, an expired one, one that is signed by itself. */
  bad: Record<"wrong name" | "expired" | "self-signed", CertifiedTarget>;
  /** For a process that trusts whoever issued them, which it reads once, at its start. */
  environment: { NODE_EXTRA_CA_CERTS: string };
  stop(): Promise<void>;
}

/** That of every machine for itself. */
const NAME = "localhost";

export async function startCertifiedTargets(): Promise<CertifiedTargets> {
  const authority = makeAuthority();
  const servers: RawServer[] = [];
  const start = async (tls: Certificate): Promise<CertifiedTarget> => {
    const server = await startRawServer((socket) => socket.write(answerOf("200 OK")), { tls });
    servers.push(server);
    return Object.defineProperty(server, "url", { value: `https://${NAME}:${server.port}/` });
  };
  return {
    good: await start(authority.issue(`DNS:${NAME}`)),
    bad: {
      "wrong name": await start(authority.issue("DNS:wrong.example")),
      expired: await start(authority.issue(`DNS:${NAME}`, -1)),
      "self-signed": await start(authority.selfSigned(`DNS:${NAME}`)),
    },
    environment: { NODE_EXTRA_CA_CERTS: authority.certPath },
    async stop() {
      for (const server of servers) await server.stop();
      authority.remove();
    },
  };
}
