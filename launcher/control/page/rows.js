// The timelines' rows: one per process, with a lane for each concurrent span, and one per folded group.

const LANE = 14;
const GAP = 7;
const STRIP = 5; // height of a rank in a folded group
const MAX_RANKS_UNFOLDED = 24;

class Rows {
  constructor() {
    this.folds = new Map(); // by group; without an entry, the group's size decides
    this.list = [];
    this.height = 0;
  }

  isFolded(group, size) { return this.folds.get(group) ?? size > MAX_RANKS_UNFOLDED; }

  toggle(group, size) { this.folds.set(group, !this.isFolded(group, size)); }

  lay(model) {
    const groups = new Map();
    for (const process of model.processes.values()) {
      if (!groups.has(process.group)) groups.set(process.group, []);
      groups.get(process.group).push(process);
    }
    this.groups = groups;
    this.list = [];
    let top = 4;
    const add = (row, height) => {
      this.list.push({ ...row, top, height });
      top += height + GAP;
    };
    for (const [group, members] of groups) {
      if (this.isFolded(group, members.length)) add({ group, members, label: `${group} (${members.length})` }, Math.max(20, members.length * STRIP + 4));
      else for (const process of members) add({ group, members: [process], process, label: process.name }, Math.max(20, process.lanes * LANE + 3));
    }
    this.height = top + 4;
  }

  /** Returns the row, the process and the lane at a height; the lane is 0 in a folded group. */
  at(y) {
    const row = this.list.find((each) => y >= each.top - GAP / 2 && y < each.top + each.height + GAP / 2);
    if (!row) return null;
    if (row.process) return { row, process: row.process, lane: Math.floor((y - row.top - 1) / LANE) };
    return { row, process: row.members[Math.floor((y - row.top - 2) / STRIP)], lane: 0 };
  }
}
