// One command to a Redis, its protocol spoken by hand: `node resp.mjs SOCKET COMMAND ARGUMENT…`. Prints what is answered.
import net from "node:net";

const [socket, ...words] = process.argv.slice(2);
const bulk = (word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`;

const connection = net.connect(socket);
connection.write(`*${words.length}\r\n${words.map(bulk).join("")}`);

let answer = "";
connection.on("data", (data) => {
  answer += data;
  if (!answer.endsWith("\r\n")) return;
  console.log(answer.slice(1).trim());
  process.exitCode = answer.startsWith("-") ? 1 : 0;
  connection.end();
});
