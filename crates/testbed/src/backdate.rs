//! Time is moved by back-dating rows: no test waits for a clock.

use std::time::Duration;

use queue_core::JobId;

use crate::TestDatabase;

impl TestDatabase {
    /// Lets the time of a session be over, as if it had not been renewed for a lease time and a second.
    pub async fn expire_session(&self, session_no: i64) {
        self.one_row(
            "update fencepost.worker_session set expires_at = now() - interval '1 second' where session_no = $1",
            session_no,
        )
        .await;
    }

    /// Moves the end of a session into the past.
    pub async fn age_session(&self, session_no: i64, by: Duration) {
        self.aged("update fencepost.worker_session set expires_at = expires_at - $2 * interval '1 second' where session_no = $1", session_no, by).await;
    }

    /// Makes every scheduled job due.
    pub async fn make_due(&self) {
        self.run("update fencepost.scheduled set due_at = now() - interval '1 second'").await;
    }

    /// Makes a lease that much older.
    pub async fn age_lease(&self, job: JobId, by: Duration) {
        self.aged(
            "update fencepost.lease set granted_at = granted_at - $2 * interval '1 second' where job_id = $1",
            job.get(),
            by,
        )
        .await;
    }

    /// Lets the schedulers have been there for long: none of their sessions is in a period of grace.
    pub async fn end_grace(&self) {
        self.run("update fencepost.scheduler set resumed_at = now() - interval '1 day'").await;
    }

    /// Lets every scheduler have been silent for that long.
    pub async fn silence_schedulers(&self, by: Duration) {
        sqlx::query("update fencepost.scheduler set beat_at = beat_at - $1 * interval '1 second'")
            .bind(by.as_secs_f64())
            .execute(self.pool())
            .await
            .expect("back-dates");
    }

    /// Lets the maintenance lease be over.
    pub async fn expire_maintenance(&self) {
        self.run("update fencepost.maintenance set expires_at = now() - interval '1 second'").await;
    }

    async fn one_row(&self, sql: &'static str, id: i64) {
        let done = sqlx::query(sql).bind(id).execute(self.pool()).await.expect("back-dates");
        assert_eq!(done.rows_affected(), 1, "no row {id} to back-date");
    }

    async fn aged(&self, sql: &'static str, id: i64, by: Duration) {
        let done = sqlx::query(sql).bind(id).bind(by.as_secs_f64()).execute(self.pool()).await.expect("back-dates");
        assert_eq!(done.rows_affected(), 1, "no row {id} to back-date");
    }
}
