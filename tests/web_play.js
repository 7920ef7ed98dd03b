// Plays a game of shoal/web greedily in Node: node web_play.js engine.js game.json steps out
// Writes out.obs (the bytes of every observation before its step) and out.json (actions, ends, values).
const fs = require("fs");
const [engine, file, steps, out] = process.argv.slice(2);
const Shoal = require(engine);

(async () => {
  const game = JSON.parse(fs.readFileSync(file, "utf8"));
  const match = await Shoal.open(game), env = match.env, obs = [], actions = [], ends = [];
  match.greedy = match.greedy.map(() => true);
  for (let step = 0; step < Number(steps); step++) {
    for (let agent = 0; agent < env.agents; agent++) {
      const seen = env.obs(agent);
      obs.push(Buffer.from(seen.buffer.slice(seen.byteOffset, seen.byteOffset + seen.byteLength)));
    }
    const ended = match.step();
    actions.push(env.actions());
    ends.push(ended);
    if (ended) match.next();
  }
  const pictures = env.draw(), curves = env.curves(0);
  fs.writeFileSync(`${out}.obs`, Buffer.concat(obs));
  fs.writeFileSync(`${out}.json`, JSON.stringify({ actions, ends, picture: pictures, curves }));
})();
