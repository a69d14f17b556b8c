-- The database, and its two logins: workers read and write rows; `bso migrate` also makes and changes tables.
-- deploy/make-secrets fills in the passwords and writes secrets/mysql_logins.sql. Run again, that file sets passwords and
-- privileges anew, and takes from the workers' login what it had beyond them: MySQL revokes only what was granted.
CREATE DATABASE IF NOT EXISTS bso CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS 'bso'@'%' IDENTIFIED BY '$worker_password';
ALTER USER 'bso'@'%' IDENTIFIED BY '$worker_password';
GRANT SELECT, INSERT, UPDATE, DELETE,
  CREATE, ALTER, DROP, INDEX, REFERENCES, TRIGGER, EVENT, CREATE VIEW, SHOW VIEW, CREATE ROUTINE, ALTER ROUTINE,
  EXECUTE, CREATE TEMPORARY TABLES, LOCK TABLES ON bso.* TO 'bso'@'%';
REVOKE CREATE, ALTER, DROP, INDEX, REFERENCES, TRIGGER, EVENT, CREATE VIEW, SHOW VIEW, CREATE ROUTINE, ALTER ROUTINE,
  EXECUTE, CREATE TEMPORARY TABLES, LOCK TABLES ON bso.* FROM 'bso'@'%';
CREATE USER IF NOT EXISTS 'bso-migrate'@'%' IDENTIFIED BY '$migrate_password';
ALTER USER 'bso-migrate'@'%' IDENTIFIED BY '$migrate_password';
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX ON bso.* TO 'bso-migrate'@'%';
