//! Resource usage of processes and their children.

use std::fs;

/// Processor time and memory of a server.
#[derive(Debug, Default, Clone, Copy)]
pub struct Usage {
    /// User and system time, in seconds.
    pub cpu: f64,
    /// Resident, in KiB.
    pub memory: f64,
}

struct Process {
    id: u32,
    parent: u32,
    cpu: f64,
}

impl Usage {
    /// Sums up these processes and their children. Fails if one of these has ended.
    pub fn of(roots: &[u32]) -> Result<Self, String> {
        let directory = fs::read_dir("/proc").map_err(|error| format!("/proc: {error}"))?;
        let ids = directory.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let all: Vec<Process> = ids.filter_map(Process::read).collect();
        let (mut tree, mut next) = (roots.to_vec(), 0);
        while let Some(parent) = tree.get(next).copied() {
            tree.extend(all.iter().filter(|it| it.parent == parent).map(|it| it.id));
            next += 1;
        }
        let mut sum = Self::default();
        for id in tree {
            match all.iter().find(|process| process.id == id) {
                Some(process) => {
                    sum.cpu += process.cpu;
                    sum.memory += resident(id).unwrap_or_default();
                }
                None => return Err(format!("the server, process {id}, has ended")),
            }
        }
        Ok(sum)
    }
}

impl Process {
    /// Returns `None` if the process has ended or is a zombie.
    fn read(id: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The fields of proc(5) after the name, which may contain any character.
        let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
        let cpu = ticks / 100.0; // USER_HZ on all Linux systems
        (fields[0] != "Z").then_some(Self { id, parent: fields.get(1)?.parse().ok()?, cpu })
    }
}

fn resident(id: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}
