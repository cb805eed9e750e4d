//! [`Status`]: how a bridge is connected to its engine.

use std::sync::Arc;

use tokio::sync::watch;

/// How a bridge is connected to its engine. [`Bridge::status`](crate::Bridge::status) returns it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The connection by which items come.
    pub receiving: LineStatus,
    /// The connection by which items are published.
    pub publishing: LineStatus,
}

/// The state of one connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LineStatus {
    /// It is connected, as far as the bridge knows.
    pub is_connected: bool,
    /// How many connections have broken so far.
    pub breaks: u64,
    /// Why the last connection broke or could not be made.
    pub error: Option<Arc<str>>,
}

/// One of the two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Receiving,
    Publishing,
}

impl Status {
    pub(crate) fn line(&mut self, role: Role) -> &mut LineStatus {
        match role {
            Role::Receiving => &mut self.receiving,
            Role::Publishing => &mut self.publishing,
        }
    }
}

pub(crate) fn connected(status: &watch::Sender<Status>, role: Role) {
    status.send_modify(|status| status.line(role).is_connected = true);
}

pub(crate) fn disconnected(status: &watch::Sender<Status>, role: Role, reason: Arc<str>) {
    status.send_modify(|status| {
        let line = status.line(role);
        if std::mem::take(&mut line.is_connected) {
            line.breaks += 1;
        }
        line.error = Some(reason);
    });
}
