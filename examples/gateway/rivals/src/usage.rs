//! What processes use, with all that they have started.

use std::fs;
use std::path::Path;

/// Processor time and memory of a server.
#[derive(Debug, Default, Clone, Copy)]
pub struct Usage {
    /// User and system time, in seconds.
    pub cpu: f64,
    /// Resident, in KiB.
    pub memory: f64,
}

impl Usage {
    pub fn of(roots: &[u32]) -> Result<Self, String> {
        let mut sum = Self::default();
        for root in roots {
            if !Path::new(&format!("/proc/{root}")).exists() {
                return Err(format!("the server, process {root}, has ended"));
            }
        }
        let mut left = roots.to_vec();
        while let Some(pid) = left.pop() {
            // A child may end meanwhile.
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            // The name, in brackets, may hold spaces.
            let fields: Vec<_> =
                stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            let number = |nth: usize| -> f64 {
                fields.get(nth - 3).and_then(|field| field.parse().ok()).unwrap_or(0.0)
            };
            sum.cpu += (number(14) + number(15)) / 100.0; // Linux has always told it in 1/100 s
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            sum.memory += resident
                .and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok())
                .unwrap_or(0.0);
            for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
                let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                left.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
        }
        Ok(sum)
    }
}
