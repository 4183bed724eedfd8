// What is known of the models: the newest figures of each version, what came in each of the last rounds, and rates between rounds.

const ROUNDS = 300;
const FEW = 100; // of so many versions, the last minutes are kept; of more, only of those that somebody looks at

/** Places of a row's figures, as figures.py has them. */
export const F = { success: 0, fail: 1, refused: 2, rows: 3, executions: 4, hits: 5, pending: 6, running: 7, age: 8 };

/** Places of a round: its moment, six counts, then these. */
const PENDING = 7, RUNNING = 8, AGE = 9, QUANTILES = 10;
export const READY = 11, KNOWN = 12, BROKEN = 13;

class Row {
  constructor(name, version) {
    this.name = name;
    this.version = version;
    this.base = null; // its figures at the last round
    this.rate = this.failing = 0;
    this.batch = null;
    this.points = [];
  }

  set([, , state, reason, figures, quantiles]) {
    Object.assign(this, { state, reason, figures, quantiles });
    if (this.base && figures && figures[F.success] < this.base[F.success]) this.base = null; // made anew
  }

  get at() { return this.figures ?? null; }
}

export class Store {
  constructor() {
    this.rows = new Map();
    this.rounds = [];
    this.points = [];
    this.hello = {};
    this.watched = "";
    this.changed = 0; // counts changes of which versions there are, and of their states
  }

  hear(hello) {
    this.hello = hello;
    this.rows.clear(); // everything is told anew
    this.changed++;
  }

  history(rounds) {
    this.rounds = rounds;
    this.points = [];
    for (let at = 1; at < rounds.length; at++) this.note(rounds[at - 1], rounds[at]);
  }

  take(rows) {
    for (const told of rows) {
      const key = `${told[0]}\n${told[1]}`;
      let row = this.rows.get(key);
      if (!row) this.rows.set(key, (row = new Row(told[0], told[1])));
      if (row.state !== told[2] || row.reason !== told[3]) this.changed++;
      row.set(told);
    }
  }

  gone(keys) {
    for (const [name, version] of keys) this.rows.delete(`${name}\n${version}`);
    this.changed++;
  }

  /** A round is over: rates are known up to now. */
  round(round) {
    const before = this.rounds[this.rounds.length - 1];
    this.rounds.push(round);
    if (this.rounds.length > ROUNDS) this.rounds.shift();
    if (before) this.note(before, round);
    const seconds = before ? (round[0] - before[0]) / 1000 : 0;
    const all = this.rows.size <= FEW;
    for (const row of this.rows.values()) {
      const { figures, base } = row;
      if (figures && base && seconds > 0 && seconds < 30) {
        row.rate = (figures[F.success] - base[F.success]) / seconds;
        row.failing = (figures[F.fail] + figures[F.refused] - base[F.fail] - base[F.refused]) / seconds;
        const executions = figures[F.executions] - base[F.executions];
        row.batch = executions > 0 ? (figures[F.rows] - base[F.rows]) / executions : row.batch;
        if (all || row.name === this.watched) {
          row.points.push([round[0], row.rate, row.failing, figures[F.pending], figures[F.age], executions > 0 ? row.batch : null,
            ...(row.rate > 0 && row.quantiles ? row.quantiles : [null, null, null]), figures[F.running]]);
          if (row.points.length > ROUNDS) row.points.shift();
        }
      } else row.rate = row.failing = 0;
      row.base = figures;
    }
  }

  note(before, now) {
    const seconds = (now[0] - before[0]) / 1000;
    if (!(seconds > 0) || seconds > 30) return;
    const per = (at) => Math.max(0, now[at + 1] - before[at + 1]) / seconds;
    const executions = now[F.executions + 1] - before[F.executions + 1];
    const batch = executions > 0 ? (now[F.rows + 1] - before[F.rows + 1]) / executions : null;
    this.points.push([now[0], per(F.success), per(F.fail) + per(F.refused), now[PENDING], now[AGE], batch,
      ...(now[QUANTILES] ?? [null, null, null]), now[RUNNING]]);
    if (this.points.length > ROUNDS) this.points.shift();
  }

  get last() { return this.rounds[this.rounds.length - 1]; }
}
