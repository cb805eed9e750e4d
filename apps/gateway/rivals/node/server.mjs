// Node with `ws`: GET /sub/KEY is a WebSocket, POST /publish/KEY sends the body to its subscribers.
import http from 'node:http';
import { WebSocketServer } from 'ws';

const port = Number(process.argv[2]);
const subscribers = new Map();
const sockets = new WebSocketServer({ noServer: true, perMessageDeflate: false });

const server = http.createServer((request, response) => {
    const key = request.url.slice('/publish/'.length);
    const chunks = [];
    request.on('data', (chunk) => chunks.push(chunk));
    request.on('end', () => {
        const body = Buffer.concat(chunks);
        for (const socket of subscribers.get(key) ?? []) {
            socket.send(body, { binary: false });
        }
        response.writeHead(202).end();
    });
});

server.on('upgrade', (request, stream, head) => {
    const key = request.url.slice('/sub/'.length);
    sockets.handleUpgrade(request, stream, head, (socket) => {
        if (!subscribers.has(key)) {
            subscribers.set(key, new Set());
        }
        const all = subscribers.get(key);
        all.add(socket);
        socket.on('error', () => socket.terminate());
        socket.on('close', () => {
            all.delete(socket);
            if (all.size === 0) {
                subscribers.delete(key);
            }
        });
    });
});
server.listen(port, '127.0.0.1');
