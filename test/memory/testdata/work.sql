CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c INT);
WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n WHERE x<60000) INSERT INTO t SELECT x, printf('%08x-%s', (x*2654435761)%4294967296, hex(x)), x%997 FROM n;
CREATE INDEX i ON t(b);
SELECT count(*) FROM (SELECT c, group_concat(b), count(*) FROM t GROUP BY c ORDER BY 2);
SELECT sum(length(replace(upper(b),'A','xyz'))) FROM t ORDER BY b;
UPDATE t SET b = b || c WHERE c % 3 = 0;
DROP TABLE t;
