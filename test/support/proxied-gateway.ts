import { startTestGateway, type TestGateway } from "./gateway.ts";
import { startTcpProxy, type TcpProxy } from "./tcp-proxy.ts";

/** A gateway with a proxy between it and its database. A cut fails its statements at once; it waits long for a slow Postgres. */
export interface ProxiedGateway {
  gateway: TestGateway;
  proxy: TcpProxy;
  stop(): Promise<void>;
}

export async function startProxiedGateway(
  options: Pick<NonNullable<Parameters<typeof startTestGateway>[0]>, "logLevel"> = {},
): Promise<ProxiedGateway> {
  const started = Promise.withResolvers<TcpProxy>();
  const gateway = await startTestGateway({
    ...options,
    isPatient: true,
    async via(databaseUrl) {
      const url = new URL(databaseUrl);
      const proxy = await startTcpProxy({ host: url.hostname, port: Number(url.port) });
      started.resolve(proxy);
      url.hostname = "127.0.0.1";
      url.port = String(proxy.port);
      return url.href;
    },
  });
  const proxy = await started.promise;
  return {
    gateway,
    proxy,
    async stop() {
      await gateway.stop();
      await proxy.stop();
    },
  };
}
