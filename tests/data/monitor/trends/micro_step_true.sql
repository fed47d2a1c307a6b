BEGIN TRANSACTION;
CREATE TABLE global_stats (
            min_step INTEGER DEFAULT 0, max_step INTEGER DEFAULT 0, max_rank INTEGER DEFAULT 0, actv TEXT DEFAULT NULL, grad_reduced TEXT DEFAULT NULL
        );
INSERT INTO "global_stats" VALUES(0,1,0,'norm','norm');
CREATE TABLE monitoring_metrics (
            metric_id INTEGER PRIMARY KEY AUTOINCREMENT,
            metric_name TEXT UNIQUE NOT NULL
        );
INSERT INTO "monitoring_metrics" VALUES(1,'actv');
INSERT INTO "monitoring_metrics" VALUES(2,'grad_reduced');
CREATE TABLE monitoring_tags (
            tag_id INTEGER PRIMARY KEY AUTOINCREMENT,
            tag_name TEXT NOT NULL,
            category TEXT NOT NULL,
            metric_id INTEGER NOT NULL,
            UNIQUE(tag_name, category, metric_id),
            FOREIGN KEY (metric_id) REFERENCES monitoring_metrics(metric_id)
        );
INSERT INTO "monitoring_tags" VALUES(1,'model','module',1);
INSERT INTO "monitoring_tags" VALUES(2,'layers','module',1);
INSERT INTO "monitoring_tags" VALUES(3,'output','module',1);
INSERT INTO "monitoring_tags" VALUES(4,'y','module',1);
INSERT INTO "monitoring_tags" VALUES(5,'x','module',1);
INSERT INTO "monitoring_tags" VALUES(6,'output.0','layer',1);
INSERT INTO "monitoring_tags" VALUES(7,'x.3','layer',1);
INSERT INTO "monitoring_tags" VALUES(8,'mlp','module',1);
INSERT INTO "monitoring_tags" VALUES(9,'norm','module',1);
INSERT INTO "monitoring_tags" VALUES(10,'input_1','module',1);
INSERT INTO "monitoring_tags" VALUES(11,'layers.0','layer',1);
INSERT INTO "monitoring_tags" VALUES(12,'model','module',2);
INSERT INTO "monitoring_tags" VALUES(13,'layers','module',2);
INSERT INTO "monitoring_tags" VALUES(14,'w1','module',2);
INSERT INTO "monitoring_tags" VALUES(15,'embed','module',2);
INSERT INTO "monitoring_tags" VALUES(16,'transformer','module',2);
INSERT INTO "monitoring_tags" VALUES(17,'lm_head','module',2);
INSERT INTO "monitoring_tags" VALUES(18,'mlp','module',2);
INSERT INTO "monitoring_tags" VALUES(19,'h','module',2);
INSERT INTO "monitoring_tags" VALUES(20,'q_proj','module',2);
INSERT INTO "monitoring_tags" VALUES(21,'self_attn','module',2);
INSERT INTO "monitoring_tags" VALUES(22,'layers.0','layer',2);
INSERT INTO "monitoring_tags" VALUES(23,'weight','module',2);
INSERT INTO "monitoring_tags" VALUES(24,'blocks.11','layer',2);
INSERT INTO "monitoring_tags" VALUES(25,'attn','module',2);
INSERT INTO "monitoring_tags" VALUES(26,'h.3','layer',2);
INSERT INTO "monitoring_tags" VALUES(27,'blocks','module',2);
CREATE TABLE monitoring_targets (
            target_id INTEGER PRIMARY KEY AUTOINCREMENT,
            target_name TEXT NOT NULL,
            vpp_stage INTEGER NOT NULL,
            micro_step INTEGER NOT NULL DEFAULT 0,
            UNIQUE(target_name, vpp_stage, micro_step)
        );
INSERT INTO "monitoring_targets" VALUES(1,'model.layers.0.mlp.input_1',1,0);
INSERT INTO "monitoring_targets" VALUES(2,'model.norm.output',1,0);
INSERT INTO "monitoring_targets" VALUES(3,'x.3.y.output.0',0,0);
INSERT INTO "monitoring_targets" VALUES(4,'model.layers.0.self_attn.q_proj.weight',0,0);
INSERT INTO "monitoring_targets" VALUES(5,'model.embed.weight',0,0);
INSERT INTO "monitoring_targets" VALUES(6,'transformer.h.3.mlp.w1',0,0);
INSERT INTO "monitoring_targets" VALUES(7,'blocks.11.attn',0,0);
INSERT INTO "monitoring_targets" VALUES(8,'lm_head',0,0);
CREATE TABLE tag_target_mapping (
            tag_id INTEGER NOT NULL,
            target_id INTEGER NOT NULL,
            PRIMARY KEY (tag_id, target_id),
            FOREIGN KEY (tag_id) REFERENCES monitoring_tags(tag_id),
            FOREIGN KEY (target_id) REFERENCES monitoring_target(target_id)
        );
INSERT INTO "tag_target_mapping" VALUES(1,1);
INSERT INTO "tag_target_mapping" VALUES(2,1);
INSERT INTO "tag_target_mapping" VALUES(8,1);
INSERT INTO "tag_target_mapping" VALUES(10,1);
INSERT INTO "tag_target_mapping" VALUES(11,1);
INSERT INTO "tag_target_mapping" VALUES(1,2);
INSERT INTO "tag_target_mapping" VALUES(3,2);
INSERT INTO "tag_target_mapping" VALUES(9,2);
INSERT INTO "tag_target_mapping" VALUES(3,3);
INSERT INTO "tag_target_mapping" VALUES(4,3);
INSERT INTO "tag_target_mapping" VALUES(5,3);
INSERT INTO "tag_target_mapping" VALUES(6,3);
INSERT INTO "tag_target_mapping" VALUES(7,3);
INSERT INTO "tag_target_mapping" VALUES(12,4);
INSERT INTO "tag_target_mapping" VALUES(13,4);
INSERT INTO "tag_target_mapping" VALUES(20,4);
INSERT INTO "tag_target_mapping" VALUES(21,4);
INSERT INTO "tag_target_mapping" VALUES(22,4);
INSERT INTO "tag_target_mapping" VALUES(23,4);
INSERT INTO "tag_target_mapping" VALUES(23,5);
INSERT INTO "tag_target_mapping" VALUES(12,5);
INSERT INTO "tag_target_mapping" VALUES(15,5);
INSERT INTO "tag_target_mapping" VALUES(14,6);
INSERT INTO "tag_target_mapping" VALUES(18,6);
INSERT INTO "tag_target_mapping" VALUES(19,6);
INSERT INTO "tag_target_mapping" VALUES(16,6);
INSERT INTO "tag_target_mapping" VALUES(26,6);
INSERT INTO "tag_target_mapping" VALUES(24,7);
INSERT INTO "tag_target_mapping" VALUES(25,7);
INSERT INTO "tag_target_mapping" VALUES(27,7);
INSERT INTO "tag_target_mapping" VALUES(17,8);
CREATE TABLE trend_data (
            rank INTEGER NOT NULL,
            step INTEGER NOT NULL,
            target_id INTEGER NOT NULL,
            metric_id INTEGER NOT NULL,
            norm REAL DEFAULT NULL,
            PRIMARY KEY (rank, step, target_id, metric_id),
            FOREIGN KEY (target_id) REFERENCES monitoring_targets(target_id),
            FOREIGN KEY (metric_id) REFERENCES monitoring_metrics(metric_id)
        ) WITHOUT ROWID;
INSERT INTO "trend_data" VALUES(0,0,1,1,1.0);
INSERT INTO "trend_data" VALUES(0,0,2,1,1.0);
INSERT INTO "trend_data" VALUES(0,0,3,1,1.0);
INSERT INTO "trend_data" VALUES(0,0,4,2,1.0);
INSERT INTO "trend_data" VALUES(0,0,5,2,1000000001.0);
INSERT INTO "trend_data" VALUES(0,0,6,2,-1000000000.0);
INSERT INTO "trend_data" VALUES(0,0,7,2,NULL);
INSERT INTO "trend_data" VALUES(0,0,8,2,2.0);
INSERT INTO "trend_data" VALUES(0,1,1,1,-1000000001.0);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('monitoring_targets',8);
INSERT INTO "sqlite_sequence" VALUES('monitoring_metrics',2);
INSERT INTO "sqlite_sequence" VALUES('monitoring_tags',27);
COMMIT;
