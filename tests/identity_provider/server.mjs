// A real identity provider (oidc-provider) for tests: node server.mjs FOLDER SETTINGS. POST /test/settings gives it other settings.
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, file] = process.argv.slice(2);
const { default: Provider } = await import(pathToFileURL(join(folder, "node_modules", "oidc-provider", "lib", "index.js")));
let settings = JSON.parse(readFileSync(file, "utf8"));
const now = Date.now;
Date.now = () => now() + (settings.ahead || 0) * 1000;
let provider;
let answer;

function account(id) {
  const found = settings.accounts[id];
  return found && { accountId: id, claims: () => ({ sub: id, ...found }) };
}

function build() {
  provider = new Provider(settings.issuer, {
    clients: settings.clients,
    jwks: { keys: settings.keys },
    findAccount: (_, id) => account(id),
    claims: { openid: ["sub"], profile: ["preferred_username"], roles: ["roles"] },
    conformIdTokenClaims: settings.userinfo === true,
    cookies: { keys: ["of these tests"] },
    pkce: { required: () => true },
    enabledJWA: { idTokenSigningAlgValues: ["RS256", "PS256", "ES256", "EdDSA"] },
    ttl: {
      AccessToken: settings.seconds, ClientCredentials: settings.seconds, IdToken: settings.seconds,
      AuthorizationCode: 60, Grant: 3600, Interaction: 600, Session: 3600,
    },
    extraTokenClaims: (_, token) => ({ roles: token.accountId ? account(token.accountId).roles : settings.robots[token.clientId] }),
    features: {
      clientCredentials: { enabled: true },
      devInteractions: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => undefined,
        getResourceServerInfo: (_, resource) => ({
          scope: "", audience: resource, accessTokenFormat: "jwt", accessTokenTTL: settings.seconds,
          jwt: { sign: { alg: settings.algorithm } },
        }),
      },
    },
  });
  provider.on("server_error", (_, error) => console.error(error));
  answer = provider.callback();
}

function readBody(request, done) {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => done(Buffer.concat(pieces).toString()));
}

build();
createServer((request, response) => {
  if (request.method === "POST" && request.url === "/test/settings") {
    readBody(request, (text) => {
      const given = JSON.parse(text);
      settings = { ...settings, ...given };
      // Who only has other roles stays logged in.
      if (Object.keys(given).some((name) => name !== "accounts" && name !== "robots")) build();
      response.writeHead(204).end();
    });
  } else answer(request, response);
}).listen(settings.port, "127.0.0.1");
