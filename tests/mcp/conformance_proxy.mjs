// The way of the conformance suite to a server that wants a token, which the suite has none of: adds it to each
// request, and hands on all else as it came, Host and Origin among it.
//
// Started with one JSON argument: { host, port, token }, where the server listens. Prints {"port": …} once it listens.

import { createServer, request } from 'node:http';

const { host, port, token } = JSON.parse(process.argv[2]);

const proxy = createServer((incoming, outgoing) => {
  const headers = [...incoming.rawHeaders, 'Authorization', `Bearer ${token}`];
  const onward = request({ host, port, method: incoming.method, path: incoming.url, headers, setHost: false });
  onward.on('response', (answer) => {
    outgoing.writeHead(answer.statusCode, answer.rawHeaders);
    answer.pipe(outgoing);
  });
  onward.on('error', (error) => outgoing.destroy(error));
  outgoing.on('close', () => onward.destroy());
  incoming.pipe(onward);
});
proxy.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: proxy.address().port })));
